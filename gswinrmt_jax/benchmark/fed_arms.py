"""Training as a run does it, fed or not: programs of `jax_arms`.

A spec has what one of a model has, and 'storage' (as `config.data.storage`;
None: not fed), 'workers' (None: as the recipe says) and 'dir', where
`made_pictures` prepared its data set.
"""

import itertools
import math

import jax
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.benchmark import made_pictures, worker
from gswinrmt_jax.data import pipeline
from gswinrmt_jax.train import feed, setup

_CIFAR = 32  # pixels up to which a recipe is CIFAR-10's
_EPOCHS = 100_000  # more than are asked for


def build(spec: worker.Spec) -> worker.Program:
  """Returns the program of a spec: each call is a dispatch."""
  of = setup.make_parts(recipes.resolve(recipe(spec)))
  fed = Fed(of, repeat=spec['storage'] is None)
  facts = {'images': of.config.batch_size * fed.steps, 'steps': fed.steps}
  return worker.Program(fed, facts, ready=fed.ready, close=fed.close)


def recipe(spec: worker.Spec) -> ml_collections.ConfigDict:
  """Returns the recipe of CIFAR-10 or, of larger images, Mini-ImageNet.

  It never validates, and metrics are never due: all dispatches are as long as
  `feed.steps_per_dispatch` lets them be. Those of a run are, too, but for the
  one in front of each reading.
  """
  size = spec['image_size']
  make = recipes.cifar10 if size <= _CIFAR else recipes.mini_imagenet
  config = make(spec['model'])
  config.dtype, config.batch_size = spec['dtype'], spec['batch']
  config.num_epochs = config.eval_every_epochs = _EPOCHS
  config.log_every_steps = 2**31 - 1
  config.model.update(spec['fields'])
  config.data.update(
      name=made_pictures.NAME,
      dir=spec['dir'],
      train_split='train',
      val_split='train[:1]',
      test_split='',
      image_size=size,
      storage=spec['storage'] or 'memory',
  )
  if spec['workers'] is not None:
    config.data.workers = spec['workers']
  return config


class Fed:
  """Trains on from dispatch to dispatch.

  Attributes:
    steps: Of each dispatch.
    state: After those that were made.
  """

  def __init__(self, of: setup.Parts, *, repeat: bool):
    """Compiles the step.

    Args:
      of: The parts of a run.
      repeat: Take the first dispatch, which is on the devices, over and over.
    """
    self._feed = feed.Feed(of, 0)
    self._upcoming = next(self._feed)
    self._dispatches = self._feed
    self._ahead = pipeline.AHEAD * of.train_data.workers
    if repeat:
      self._feed.close()
      self._dispatches, self._ahead = itertools.repeat(self._upcoming), 0
    self.steps = len(self._upcoming.steps)
    self._key = of.key
    try:
      self._advance = of.advance.lower(
          of.target, self._upcoming.supply, self._key
      ).compile()
      self.state = of.devices.place(of.create_state())
    except BaseException:
      self.close()
      raise

  def __call__(self, calls: int) -> None:
    """Makes so many dispatches, as `training.course` does."""
    for _ in range(calls):
      self.state, _ = self._advance(
          self.state, self._upcoming.supply, self._key
      )
      self._upcoming = next(self._dispatches)  # The devices are busy meanwhile.
    jax.block_until_ready(self.state)

  def ready(self) -> None:
    """Passes over what workers made while nobody took it."""
    for _ in range(math.ceil(self._ahead / self.steps)):
      next(self._dispatches)

  def close(self) -> None:
    """Ends the workers."""
    self._feed.close()
