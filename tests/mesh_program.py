"""Trains a small model on several devices; tests start it as a program.

  python tests/mesh_program.py FOLDER JOIN RECIPE [RECIPE ...]

JOIN is `HOST:PORT,N,I`, or empty for a single process. Each RECIPE is either
JSON with the changes to `recipe`, or 'evaluate'. They run one after another in
the same folder.
"""

import io
import json
import pathlib
import sys
import types

from flax import linen as nn
import jax
import pytest
import tiny
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import guard
from gswinrmt_jax.commands import main as commands
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import train_loop


class Small(nn.Module):
  """A convolution, BatchNorm, dropout and linear layers, of even widths."""

  arch = types.SimpleNamespace(stride=2)

  @nn.compact
  def __call__(self, x, *, train: bool):
    x = nn.Conv(8, (3, 3), strides=2, use_bias=False, name='conv')(x)
    x = layers.BatchNorm(name='norm')(x, train=train)
    x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x))
    x = nn.relu(nn.Dense(16, name='hidden')(x.mean((1, 2))))
    return nn.Dense(tiny.CLASSES, name='head')(x)


def install(monkeypatch):
  """Replaces data sets and model by small ones, and the draw of mixing."""
  tiny_parts.install(monkeypatch)
  monkeypatch.setattr(recipes, 'make_model', lambda *args, **how: Small())
  monkeypatch.setattr(factory, 'create_model', lambda *args, **how: Small())
  # Beta(1, 1); JAX's general one takes as long to compile as all the rest.
  monkeypatch.setattr(
      jax.random,
      'beta',
      lambda key, a, b, dtype: jax.random.uniform(key, dtype=dtype),
  )


def recipe(**changes):
  """Returns a recipe of twelve epochs of 25 images with random augmentation."""
  return tiny_parts.recipe(
      **{
          'batch_size': 16,
          'num_epochs': 12,
          'eval_every_epochs': 3,
          'log_every_steps': 1,
          'ema_decay': 0.9,
          'augment.crop_padding': 1,
          'augment.flip': True,
          'augment.erase_prob': 0.5,
          'augment.mixup_alpha': 1.0,
          'augment.cutmix_alpha': 1.0,
          'optimizer.eps': 1e-3,
          **changes,
      }
  )


def train(folder: pathlib.Path, **changes):
  """Trains the recipe; returns the terminal output."""
  stream = io.StringIO()
  train_loop.train(recipe(**changes), folder, metrics_log.Terminal(stream))
  return stream.getvalue()


def evaluate(folder) -> int:
  """Runs the evaluate command on the last checkpoint; returns its status."""
  argv = ['evaluate', str(folder), '--step=latest', '--split=val']
  return commands.main([*argv, '--weights=raw', '--batch-size=3'])


def main(folder, join, *recipes):
  """Trains each recipe, or evaluates, in order."""
  processes.start(*join.split(','))
  jax.config.update('jax_numpy_rank_promotion', 'raise')
  with pytest.MonkeyPatch.context() as monkeypatch:
    install(monkeypatch)
    for changes in recipes:
      if changes == 'evaluate':
        assert evaluate(folder) == 0
      else:
        train(pathlib.Path(folder), **json.loads(changes))


if __name__ == '__main__':
  sys.exit(guard.guarded(lambda: main(*sys.argv[1:])))
