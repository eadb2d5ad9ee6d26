"""The first batch, drawn as the first step will see it."""

import pathlib

import jax

from gswinrmt_jax.distributed import compilation, mesh, processes
from gswinrmt_jax.runs import plots
from gswinrmt_jax.train import dispatch, setup
from gswinrmt_jax.train import train_step as step_lib


def draw(of: setup.Parts, supply: dispatch.Supply, path: pathlib.Path) -> None:
  """Draws some of its images, before and after the augmentation.

  All processes take part, one writes the picture.

  Args:
    of: The run's parts.
    supply: Of the first dispatch.
    path: Of the picture.

  Raises:
    OSError: If it cannot be written.
  """

  def some(key, supply):
    batch = supply.batch(0)
    image, targets = of.augmentation(key, batch)
    if of.maps:
      targets, _ = targets  # those of the tokens are not written down
    return jax.tree.map(
        lambda rows: rows[: plots.DRAWN], (batch, (image, targets))
    )

  draw_some = jax.jit(
      some,
      out_shardings=of.devices.replicated,
      compiler_options=mesh.quick_compilation(),
  )
  given = step_lib.augment_key(of.key, 0), supply
  program = compilation.compiled(compilation.lowered(draw_some, *given))
  drawn = program(*given)
  if processes.is_first():
    plots.write_augmented_batch(path, *jax.device_get(drawn), of.info)
