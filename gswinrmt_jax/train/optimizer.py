"""AdamW: warm-up, cosine, decay on kernels only; by step or by epoch."""

from collections.abc import Sequence
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train.schedule import Schedule

# Parameters of `models.block` that scale a branch.
_LAYER_SCALE = ('attention_scale', 'ffn_scale')


def from_config(
    config: ml_collections.ConfigDict, schedule: Schedule
) -> tuple[optax.Schedule, optax.GradientTransformation]:
  """Returns the learning rate by step, and AdamW with it.

  Args:
    config: A checked config.
    schedule: Its steps; a warm-up ends at step `floor(warmup_epochs n / B)`.

  Raises:
    UserError: If the warm-up fills the run.
  """
  fields = config.optimizer
  rates = {
      'start': fields.warmup_learning_rate,
      'final': fields.final_learning_rate,
  }
  if fields.schedule == 'cosine':
    warmup = fields.warmup_epochs * schedule.num_examples / schedule.batch_size
    learning_rate = warmup_cosine(
        fields.learning_rate,
        warmup_steps=int(warmup),
        total_steps=schedule.total_steps,
        **rates,
    )
  else:
    by_epoch = epoch_learning_rates(
        fields.learning_rate,
        warmup_epochs=fields.warmup_epochs,
        num_epochs=schedule.num_epochs,
        **rates,
    )
    epochs = range(1, schedule.num_epochs + 1)
    ends = [schedule.epoch_end(epoch) for epoch in epochs]
    learning_rate = piecewise(by_epoch, ends)
  return learning_rate, adamw(
      learning_rate,
      b1=fields.b1,
      b2=fields.b2,
      eps=fields.eps,
      weight_decay=fields.weight_decay,
      decay_layer_scale=fields.decay_layer_scale,
  )


def adamw(
    learning_rate: optax.Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.05,
    decay_layer_scale: bool = False,
) -> optax.GradientTransformation:
  """Returns AdamW whose weight decay spares what `decay_mask` says."""
  # Not within `inject_hyperparams`: it takes the mask for a schedule and
  # turns the decay off without a word.
  return optax.adamw(
      learning_rate,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=functools.partial(decay_mask, layer_scale=decay_layer_scale),
  )


def decay_mask(params: Any, *, layer_scale: bool = False) -> Any:
  """Tells which leaves decay: those named `kernel`, depthwise ones included.

  Biases, norms and the decay logits are left alone.

  Args:
    params: The parameters.
    layer_scale: Whether LayerScale decays. In the released RMT it is stored
      with four axes, and only arrays with one axis do not decay there.
  """
  names = {'kernel', *(_LAYER_SCALE if layer_scale else ())}
  return jax.tree.map_with_path(lambda path, _: path[-1].key in names, params)


def warmup_cosine(
    peak: float,
    *,
    warmup_steps: int,
    total_steps: int,
    start: float = 0.0,
    final: float = 0.0,
) -> optax.Schedule:
  r"""Linear from the start to the peak, then half a cosine to the end.

      lr(t) = start + (peak - start) t / W                            t < W
      lr(t) = final + (peak - final) (1 + cos(pi (t - W) / (T - W))) / 2
                                                                      t >= W

  Args:
    peak: Largest learning rate.
    warmup_steps: `W`; 0 starts at the peak.
    total_steps: `T`, warm-up included.
    start: Where the warm-up begins.
    final: Where the cosine ends.

  Raises:
    UserError: If the warm-up leaves no step for the cosine.
  """
  _check_warmup(warmup_steps, total_steps, 'steps')
  return optax.warmup_cosine_decay_schedule(
      start if warmup_steps else peak,
      peak,
      warmup_steps,
      total_steps,
      end_value=final,
  )


def epoch_learning_rates(
    peak: float,
    *,
    warmup_epochs: float,
    num_epochs: int,
    start: float = 0.0,
    final: float = 0.0,
) -> list[float]:
  r"""Returns the learning rate of each epoch, as RMT was trained.

      lr(e) = start + (peak - start) t / W                            t < W
      lr(e) = final + (peak - final) (1 + cos(pi t / T)) / 2          t >= W
      t = max(e - 1, 0)

  The released code sets the rate after an epoch, with the number of the epoch
  just finished, so epochs 0 and 1 share the first value, and the warm-up is not
  taken off the cosine, which begins past its peak. This gives what its training
  logs print, digit by digit.

  Args:
    peak: Where the warm-up leads.
    warmup_epochs: `W`; 0 starts at the peak.
    num_epochs: `T`.
    start: Where the warm-up begins.
    final: Where the cosine would end, at epoch `T + 1`.

  Raises:
    UserError: If the warm-up leaves no epoch for the cosine.
  """
  _check_warmup(warmup_epochs, num_epochs, 'epochs')
  rates = []
  for epoch in range(num_epochs):
    t = max(epoch - 1, 0)
    if t < warmup_epochs:
      rates.append(start + (peak - start) * t / warmup_epochs)
    else:
      half = (1 + math.cos(math.pi * t / num_epochs)) / 2
      rates.append(final + (peak - final) * half)
  return rates


def piecewise(rates: Sequence[float], ends: Sequence[int]) -> optax.Schedule:
  """Returns the schedule that is `rates[e]` in the steps of epoch e.

  Args:
    rates: One for each epoch.
    ends: Last step of each epoch: update `ends[e]`, counted from 0, is the
      first of epoch e + 1.
  """
  values = np.asarray(rates, np.float32)
  # The last epoch has no end here: its rate stays.
  edges = np.asarray(ends[:-1], np.int32)

  def learning_rate(count):
    epoch = jnp.searchsorted(edges, count, side='right')
    return jnp.asarray(values)[epoch]

  return learning_rate


def last_learning_rate(
    learning_rate: optax.Schedule, opt_state: optax.OptState
) -> jax.Array:
  """Returns the learning rate of the last update; of the first, before it.

  Args:
    learning_rate: That of the optimizer.
    opt_state: State of `adamw`.
  """
  *_, scheduled = opt_state
  return learning_rate(jnp.maximum(scheduled.count - 1, 0))


def _check_warmup(warmup, total, unit):
  if warmup >= total:
    raise UserError(
        f'the warm-up of {warmup:g} {unit} fills the whole run of {total}: '
        'lower config.optimizer.warmup_epochs or raise config.num_epochs'
    )
