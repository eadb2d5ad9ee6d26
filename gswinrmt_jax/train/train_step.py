"""The train step: one update as a pure function of state, batch and key."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from gswinrmt_jax.train import layerwise
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train.augmentation import Augmentation
from gswinrmt_jax.train.losses import class_loss, Loss
from gswinrmt_jax.train.train_state import TrainState

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]

# Random streams of the run's key. A new stream needs a new number, so that the
# others stay the same.
_AUGMENT, _DROPOUT, _LOSS, _SAMPLING = 0, 1, 2, 3


def make_train_step(
    model: nn.Module,
    tx: optax.GradientTransformation,
    augmentation: Augmentation,
    loss: Loss = class_loss,
    *,
    learning_rate: Callable[[optax.OptState], jax.Array] | None = None,
    ema_decay: float = 0.0,
    ema_warmup: bool = False,
    freeze: str = '',
    freeze_statistics: bool = False,
    skip_nonfinite: bool = False,
    accumulate_steps: int = 1,
    pairs: bool = True,
) -> TrainStep:
  """Returns the train step `(state, batch, key) -> (state, metrics)`.

  The caller jits it. The key is the same for the whole run: the step number is
  folded in here, so a resumed run draws the same random numbers as an
  uninterrupted one.

  Args:
    model: Called by the loss, in training mode.
    tx: The optimizer, including the learning rate.
    augmentation: Returns the model's input and the targets of the loss.
    loss: The loss to minimise.
    learning_rate: Reads the rate of the last update from the optimizer's
      state, for the metrics.
    ema_decay: EMA decay per step; 0 if the state keeps no EMA.
    ema_warmup: Whether the EMA warms up, see `train_state.update_ema`.
    freeze: What is not trained, see `layerwise.is_frozen`.
    freeze_statistics: Whether the backbone's BatchNorms keep their statistics
      and normalise by them.
    skip_nonfinite: Whether a step whose loss or gradient is not finite changes
      only the step number.
    accumulate_steps: Number of parts for gradient accumulation.
    pairs: Whether neighbours stay together in the parts, which token mixing
      needs.

  Returns:
    The train step. Its metrics are scalars: `loss`, those of the loss,
    `grad_norm` (global l2 norm, before clipping), `finite` (whether loss and
    gradient are), `learning_rate` and, if decays are learned, `gamma_min` and
    `gamma_max` after the update. An accuracy is on the augmented images,
    against the class with the largest weight in their targets: the label itself
    in unmixed batches.
  """

  def train_step(state, batch, key):
    dropout_key = _stream_key(key, _DROPOUT, state.step)
    loss_key = _stream_key(key, _LOSS, state.step)
    image, targets = augmentation(
        augment_key(key, state.step), batch, state.step
    )

    def loss_of(params, batch_stats, part, dropout_key):
      image, targets = part
      apply = functools.partial(
          model.apply,
          {
              'params': layerwise.stop_gradients(params, freeze),
              'batch_stats': batch_stats,
          },
          train=True,
          rngs={
              'dropout': dropout_key,
              'sampling': jax.random.fold_in(dropout_key, _SAMPLING),
          },
          mutable=['batch_stats'],
      )
      with layerwise.evaluate_frozen(freeze, freeze_statistics):
        value, (metrics, updated) = loss(apply, image, targets, loss_key)
      return value, (metrics, updated['batch_stats'])

    gradient = jax.value_and_grad(loss_of, has_aux=True)
    if accumulate_steps > 1:
      gradient = _accumulated(gradient, accumulate_steps, pairs)
    (value, (metrics, batch_stats)), grads = gradient(
        state.params, state.batch_stats, (image, targets), dropout_key
    )
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(value) & jnp.isfinite(grad_norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    new_state = state.replace(
        params=optax.apply_updates(state.params, updates),
        batch_stats=batch_stats,
        opt_state=opt_state,
    )
    if ema_decay:
      new_state = new_state.replace(
          ema=state_lib.update_ema(
              state.ema,
              new_state.variables,
              ema_decay,
              step=state.step if ema_warmup else None,
          )
      )
    if skip_nonfinite:
      new_state = optax.tree.where(finite, new_state, state)
    metrics = {
        'loss': value,
        **metrics,
        'grad_norm': grad_norm,
        'finite': finite,
        **state_lib.decay_range(new_state.params),
    }
    if learning_rate:
      metrics['learning_rate'] = learning_rate(new_state.opt_state)
    return new_state.replace(step=state.step + 1), metrics

  return train_step


def augment_key(key: jax.Array, step: int | jax.Array) -> jax.Array:
  """Returns the augmentation key of a step from the run's key.

  The step is given as the number of updates already made.
  """
  return _stream_key(key, _AUGMENT, step)


def split_batch(batch: Any, steps: int, pairs: bool) -> Any:
  """Splits a batch into parts along a new first axis.

      part[a, n p + q] = batch[n (p steps + a) + q],   q = 0 ... n - 1

  Each part takes rows from the whole batch, so that the parts do not depend on
  the number of devices and no row moves from one device to another.

  Args:
    batch: Arrays [b ...] with b a multiple of `n steps`.
    steps: Number of parts.
    pairs: Whether neighbours stay together, n = 2; otherwise n = 1.

  Returns:
    Arrays [steps b/steps ...].
  """

  def one(rows):
    count, *rest = rows.shape
    groups = rows.reshape(-1, steps, 2 if pairs else 1, *rest)
    return groups.swapaxes(0, 1).reshape(steps, count // steps, *rest)

  return jax.tree.map(one, batch)


def _accumulated(gradient, steps, pairs):
  """Returns `gradient` accumulated over A = `steps` parts of the batch.

      L = 1/A sum_a L_a,   g = 1/A sum_a g_a

  For a loss that is a mean over images, and a model without BatchNorm and
  stochastic depth, this equals the gradient of the whole batch. BatchNorm
  normalises each part by the part's own statistics, and updates its running
  statistics once per part. Stochastic depth has its own draws in each part.
  """

  def accumulated(params, batch_stats, batch, key):
    def add(carry, part):
      batch_stats, total = carry
      part, index = part
      (loss, (metrics, batch_stats)), grads = gradient(
          params, batch_stats, part, jax.random.fold_in(key, index)
      )
      total = jax.tree.map(jnp.add, total, grads)
      return (batch_stats, total), (loss, metrics)

    zeros = jax.tree.map(jnp.zeros_like, params)
    (batch_stats, grads), values = jax.lax.scan(
        add,
        (batch_stats, zeros),
        (split_batch(batch, steps, pairs), jnp.arange(steps)),
        # On a CPU, gradients of convolutions are 10 to 40 times slower in a
        # loop (jax-ml/jax#12868).
        unroll=jax.default_backend() == 'cpu',
    )
    loss, metrics = jax.tree.map(lambda parts: parts.sum(0) / steps, values)
    grads = jax.tree.map(lambda total: total / steps, grads)
    return (loss, (metrics, batch_stats)), grads

  return accumulated


def _stream_key(key, stream, step):
  return jax.random.fold_in(jax.random.fold_in(key, stream), step)
