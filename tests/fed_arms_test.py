"""What is timed of the pipeline is the run's own feed, step and recipe."""

import dataclasses
import itertools
import multiprocessing

import jax
import numpy as np
import pytest
import tiny
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.benchmark import fed_arms, jax_arms, made_pictures
from gswinrmt_jax.data import pipeline, records
from gswinrmt_jax.train import build, feed, schedule, setup

SPEC = {
    'task': 'pipeline',
    'model': 'retention_compact',
    'fields': {},
    'batch': 4,
    'image_size': 32,
    'classes': 3,
    'dtype': 'float32',
    'storage': 'disk',
    'workers': None,
    'dir': '/pictures',
}


class Advance:
  """Compiles nothing and keeps the rows of each dispatch."""

  def __init__(self):
    self.rows = []

  def lower(self, *args):
    return self

  def compile(self):
    def advance(state, supply, key):
      count = int(supply.count)
      self.rows.append(np.asarray(supply.batches['row'])[:count])
      return state, {}

    return advance


@pytest.fixture
def of(monkeypatch):
  """Parts whose dispatches have three steps."""
  tiny_parts.install(monkeypatch)
  changes = {
      'steps_per_dispatch': 3,
      'log_every_steps': 1000,
      'eval_every_epochs': 4,
  }
  config = recipes.resolve(tiny_parts.recipe(**changes))
  return dataclasses.replace(setup.make_parts(config), advance=Advance())


def _rows(of, steps):
  """Rows of the first batches, by the definition of the order."""
  batches = pipeline.train_batches(
      of.train_data, batch_size=4, seed=of.config.seed
  )
  return np.stack([batch['row'] for batch in itertools.islice(batches, steps)])


def test_a_fed_arm_goes_through_the_data(of):
  fed = fed_arms.Fed(of, repeat=False)
  assert fed.steps == 3
  fed(2)
  fed.ready()  # There are no workers, so nothing is passed over.
  fed(1)
  np.testing.assert_array_equal(np.concatenate(of.advance.rows), _rows(of, 9))


def test_without_a_feed_the_first_dispatch_comes_again(of):
  fed = fed_arms.Fed(of, repeat=True)
  fed(2)
  assert len(of.advance.rows) == 2
  for rows in of.advance.rows:
    np.testing.assert_array_equal(rows, _rows(of, 3))


@pytest.mark.parametrize(('repeat', 'passed'), [(False, 2), (True, 0)])
def test_what_workers_made_meanwhile_is_passed_over(
    of, monkeypatch, repeat, passed
):
  """Two batches each of two workers: two dispatches of three hold them."""
  taken = []
  fetch = feed.Feed.__next__
  monkeypatch.setattr(
      feed.Feed, '__next__', lambda self: taken.append(0) or fetch(self)
  )
  monkeypatch.setattr(type(of.train_data), 'workers', 2)
  monkeypatch.setattr(pipeline, '_iterate', lambda steps, workers: iter(steps))
  fed = fed_arms.Fed(of, repeat=repeat)
  before = len(taken)
  fed.ready()
  assert len(taken) - before == passed


def test_the_recipe_is_the_image_size_s():
  small = fed_arms.recipe(SPEC)
  large = fed_arms.recipe({**SPEC, 'image_size': 224, 'workers': 5})
  assert (small.augment.crop_padding, large.augment.crop_padding) == (4, 0)
  assert (small.data.workers, large.data.workers) == (0, 5)
  for config, size in ((small, 32), (large, 224)):
    assert config.augment.rand_augment_ops == 2
    assert (config.batch_size, config.dtype) == (4, 'float32')
    assert (config.data.image_size, config.data.storage) == (size, 'disk')
    assert config.data.dir == '/pictures'
  assert fed_arms.recipe({**SPEC, 'storage': None}).data.storage == 'memory'


@pytest.mark.parametrize(('size', 'expected'), [(32, 50), (224, 3)])
def test_all_dispatches_are_as_long(monkeypatch, size, expected):
  """Also where the steps of a reading, 50, are no multiple of theirs."""
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  config = fed_arms.recipe({**SPEC, 'image_size': size, 'batch': 128})
  stored = records.Rows(5, (size, size, 3))
  most = feed.steps_per_dispatch(config, stored)
  assert most == expected  # as a run has it
  pieces = schedule.make_plan(config, 25).dispatches(0, most)
  assert {len(piece) for piece in itertools.islice(pieces, 100)} == {most}


@pytest.mark.parametrize(
    ('storage', 'workers', 'steps'), [('decode', 1, 1), ('device', 0, 2)]
)
def test_the_whole_program(monkeypatch, tmp_path, storage, workers, steps):
  monkeypatch.setattr(build, 'make_model', lambda *args: tiny.Tiny())
  recipe = fed_arms.recipe

  def several(spec):
    config = recipe(spec)
    config.steps_per_dispatch = steps
    return config

  monkeypatch.setattr(fed_arms, 'recipe', several)
  made_pictures.prepare(tmp_path, 9, classes=3, width=32, height=32)
  changes = {'storage': storage, 'workers': workers, 'dir': str(tmp_path)}
  program = jax_arms.build({**SPEC, **changes})
  assert len(multiprocessing.active_children()) == workers
  assert program.facts['images'] == 4 * steps
  assert program.facts['steps'] == steps
  for calls in (1, 3):
    program.ready()
    program.run(calls)
  assert int(program.run.state.step) == 4 * steps
  program.close()
  assert not multiprocessing.active_children()
