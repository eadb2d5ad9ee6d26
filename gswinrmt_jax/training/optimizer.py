"""AdamW as Table 2 has it: warm-up, cosine, decay on kernels only."""

from typing import Any

import jax
import optax

from gswinrmt_jax.errors import UserError


def learning_rate_schedule(
    peak: float, *, warmup_steps: int, total_steps: int
) -> optax.Schedule:
  r"""Linear from 0 to the peak, then half a cosine to 0.

      lr(t) = peak t / W                                  t < W
      lr(t) = peak (1 + cos(pi (t - W) / (T - W))) / 2    t >= W

  Args:
    peak: Largest learning rate.
    warmup_steps: `W`; 0 starts at the peak.
    total_steps: `T`, warm-up included.

  Raises:
    UserError: If the warm-up leaves no step for the cosine.
  """
  if warmup_steps >= total_steps:
    raise UserError(
        f'the warm-up of {warmup_steps} steps fills the whole run of '
        f'{total_steps}: lower config.optimizer.warmup_epochs or raise '
        'config.num_epochs'
    )
  cosine = optax.cosine_decay_schedule(peak, total_steps - warmup_steps)
  if not warmup_steps:
    return cosine
  warmup = optax.linear_schedule(0.0, peak, warmup_steps)
  return optax.join_schedules([warmup, cosine], [warmup_steps])


def decay_mask(params: Any) -> Any:
  """Tells which leaves decay: those named `kernel`, depthwise ones included.

  Biases, norms, LayerScale and the decay logits are left alone.
  """
  return jax.tree.map_with_path(
      lambda path, _: path[-1].key == 'kernel', params
  )


def make_optimizer(
    schedule: optax.Schedule,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> optax.GradientTransformation:
  """Returns AdamW with decoupled decay: `w <- w - lr (adam + decay w)`."""
  # Not within `inject_hyperparams`: it takes the mask for a schedule and
  # turns the decay off without a word.
  return optax.adamw(
      schedule,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=decay_mask,
  )
