"""One update, as a pure function of state, batch and key."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.train import accumulate, average, gradients
from gswinrmt_jax.train.train_state import TrainState

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
# (key, batch) -> (normalised image, targets of the loss)
Augmentation = Callable[[jax.Array, Batch], tuple[jax.Array, Any]]
# (apply, image, targets, key) -> (loss, (class logits, what apply updated));
# apply is the model's, in training, with everything but the image.
Loss = Callable[
    [Callable[..., Any], jax.Array, Any, jax.Array],
    tuple[jax.Array, tuple[jax.Array, Any]],
]
TrainStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]

# Streams of the run's key. A new stream takes a new number, so that the
# others go on drawing what they drew.
_AUGMENT, _DROPOUT, _LOSS = 0, 1, 2


def augment_key(key: jax.Array, step: int | jax.Array) -> jax.Array:
  """Returns the key that the augmentation of one step gets.

  Args:
    key: The run's.
    step: Updates made before.
  """
  return _stream_key(key, _AUGMENT, step)


def class_loss(
    apply: Callable[..., Any], image: jax.Array, targets: Any, key: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, Any]]:
  """Returns the mean cross-entropy with the soft targets, in float32."""
  del key
  logits, updates = apply(image)
  loss = optax.softmax_cross_entropy(logits, targets).mean()
  return loss, (logits, updates)


def make_train_step(
    model: nn.Module,
    tx: optax.GradientTransformation,
    augmentation: Augmentation,
    loss: Loss = class_loss,
    *,
    ema_decay: float = 0.0,
    skip_nonfinite: bool = False,
    accumulate_steps: int = 1,
    placing: mesh.Devices | None = None,
) -> TrainStep:
  """Returns the update `(state, batch, key) -> (state, metrics)`.

  The caller jits it. The key is the same for the whole run: the step number is
  folded in here, so a resumed run draws what the unbroken one would have.

  Args:
    model: Called as `model(image, train=True)`; returns float32 logits.
    tx: The optimiser, schedule included.
    augmentation: Makes the model's input and the targets of the loss.
    loss: What is minimised; draws by its key.
    ema_decay: Of the state's average, for a step; 0 where it keeps none.
    skip_nonfinite: Whether a step whose loss or gradient is not finite changes
      nothing but the number of the step.
    accumulate_steps: Parts that the batch is taken in, see `accumulate`.
    placing: Where the state is; None where it is nowhere split.

  Returns:
    The update. Its metrics are scalars: `loss`, `accuracy` (of the augmented
    images, against the label before mixing), `grad_norm` (global, l2) and
    `finite` (whether loss and gradient are).
  """

  def train_step(state, batch, key):
    dropout_key = _stream_key(key, _DROPOUT, state.step)
    loss_key = _stream_key(key, _LOSS, state.step)
    image, targets = augmentation(augment_key(key, state.step), batch)

    def loss_of_part(params, batch_stats, part, index):
      image, targets, label = part
      key = dropout_key
      if accumulate_steps > 1:
        key = jax.random.fold_in(key, index)
      apply = functools.partial(
          model.apply,
          {'params': params, 'batch_stats': batch_stats},
          train=True,
          rngs={'dropout': key},
          mutable=['batch_stats'],
      )
      value, (logits, updated) = loss(apply, image, targets, loss_key)
      accuracy = jnp.mean(logits.argmax(-1) == label)
      return value, (accuracy, updated['batch_stats'])

    value, accuracy, batch_stats, grads = accumulate.value_and_grad(
        loss_of_part,
        placing.whole(state.params) if placing else state.params,
        state.batch_stats,
        (image, targets, batch['label']),
        steps=accumulate_steps,
        reduce=placing.parts if placing else lambda grads: grads,
    )
    grad_norm = gradients.norm(grads)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    metrics = {
        'loss': value,
        'accuracy': accuracy,
        'grad_norm': grad_norm,
        'finite': jnp.isfinite(value) & jnp.isfinite(grad_norm),
    }
    new_state = state.replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        batch_stats=batch_stats,
        opt_state=opt_state,
    )
    if ema_decay:
      ema = average.update(state.ema, new_state.variables, ema_decay)
      new_state = new_state.replace(ema=ema)
    if skip_nonfinite:
      new_state = _chosen(metrics['finite'], new_state, state)
    return new_state, metrics

  return train_step


def _chosen(finite, new, old):
  """Returns the new state, or the old one with the new number of the step."""
  kept = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old),
      new.replace(step=old.step),
      old,
  )
  return kept.replace(step=new.step)


def _stream_key(key, stream, step):
  return jax.random.fold_in(jax.random.fold_in(key, stream), step)
