"""Replaces the real model and images by tiny ones."""

from collections.abc import Iterator
import contextlib
import io
import pathlib
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
import ml_collections
import tiny

from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import datasets, records
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import plots
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import train_loop

DRAW_CURVES = plots.draw_curves  # which `install` replaces
# 25 images in batches of 4: epochs end at steps 6, 12, 18, 25.
SPLITS = {
    'train': tiny.arrays(0, 25),
    'val': tiny.arrays(1, 11),
    'test': tiny.arrays(2, 7),
}


def install(monkeypatch):
  """Replaces data sets, model and the drawing of curves for one test."""
  info = datasets.Info(
      'tiny', ('a', 'b', 'c'), (0.4,) * 3, (0.3,) * 3, (32, 32)
  )
  monkeypatch.setattr(datasets, 'info', lambda name, data_dir: info)
  monkeypatch.setattr(datasets, 'load', load)
  monkeypatch.setattr(
      datasets, 'open_source', lambda name, split, *_: SPLITS[split].source
  )
  monkeypatch.setattr(recipes, 'make_model', lambda *args, **how: tiny.Tiny())
  monkeypatch.setattr(
      factory, 'create_model', lambda *args, **fields: tiny.Tiny()
  )
  monkeypatch.setattr(plots, 'draw_curves', sketch_curves)


def sketch_curves(folder, entries, terminal, summary=None):
  """Writes blanks: drawing would take longer than the rest of a run."""
  with terminal.warn_if_not_written('curves.png'):
    files.write_text(folder / 'curves.png', ' ' * 80_000)


def load(name, split, data_dir, *, image_size, **how):
  """Returns a split, as `datasets.load` would."""
  source = records.Arrays(SPLITS[split].image, SPLITS[split].label)
  return records.to_memory(records.Images(source, image_size))


def recipe(**changes):
  """Returns a recipe of four epochs."""
  config = recipes.digits('retention_compact')
  config.update_from_flattened_dict(
      {
          'batch_size': 4,
          'eval_batch_size': 5,
          'num_epochs': 4,
          'log_every_steps': 5,
          'optimizer.learning_rate': 0.05,
          **changes,
      }
  )
  return config


def train(folder: pathlib.Path, **changes: Any) -> tuple[dict[str, Any], str]:
  """Trains the recipe; returns the summary and the terminal output."""
  stream = io.StringIO()
  summary = train_loop.train(recipe(**changes), folder, Terminal(stream))
  return summary, stream.getvalue()


def open_run(
    config: ml_collections.ConfigDict,
    folder: pathlib.Path,
    stream: io.StringIO | None = None,
) -> contextlib.AbstractContextManager[train_loop.Run]:
  """Opens a run without training."""
  terminal = Terminal(stream or io.StringIO())
  return train_loop.open_run(recipes.resolve(config), folder, terminal)


@contextlib.contextmanager
def compiled_once(folder: pathlib.Path) -> Iterator[None]:
  """Lets later runs reuse compiled programs.

  Other processes may share the folder. Without a reset, JAX keeps using the
  first folder it was given.
  """
  settings = {
      'jax_compilation_cache_dir': str(folder),
      'jax_persistent_cache_min_compile_time_secs': 0.0,
      'jax_persistent_cache_min_entry_size_bytes': -1,
  }
  before = {name: getattr(jax.config, name) for name in settings}
  compilation_cache.reset_cache()
  for name, value in settings.items():
    jax.config.update(name, value)
  yield
  compilation_cache.reset_cache()
  for name, value in before.items():
    jax.config.update(name, value)
