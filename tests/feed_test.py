"""One order and one content, wherever records are."""

import types

import folder_data
import jax
import ml_collections
import numpy as np
import pytest
import tiny

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.train import feed, resident, schedule

# 26 records in batches of 4: epochs end at steps 6, 13, 19, 26.
_RECORDS, _BATCH = 26, 4


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  folder_data.write(root, {'train': folder_data.examples(_RECORDS)})
  return root


def _config(**changes):
  fields = {
      'seed': 3,
      'batch_size': _BATCH,
      'eval_batch_size': 1,
      'num_epochs': 4,
      'stop_after_epochs': 3,
      'eval_every_epochs': 2,
      'log_every_steps': 5,
      'checkpoint_every_steps': 0,
      'steps_per_dispatch': 3,
      'profile_steps': '',
      'data': {'storage': 'memory', 'repeats': 1, 'workers': 0},
  }
  config = ml_collections.ConfigDict(fields)
  config.update_from_flattened_dict(changes)
  return config


def _feed(config, records, start=0, maps=None):
  """A feed of as much of a run as it asks for."""
  here = mesh.Devices()
  of = types.SimpleNamespace(
      config=config,
      train_data=resident.place(records, config.data.storage, here.replicate),
      maps=maps,
      devices=here,
      plan=schedule.make_plan(config, len(records)),
  )
  return feed.Feed(of, start)


def _batches(dispatches):
  """Each step's batch as the device sees it."""
  found = {}
  for dispatch in dispatches:
    assert dispatch.supply.count == len(dispatch.steps)
    for index, step in enumerate(dispatch.steps):
      found[step] = jax.device_get(dispatch.supply.batch(index))
  return found


def _same(batch, other):
  assert batch.keys() == other.keys() == {'image', 'label', 'row'}
  for name, array in batch.items():
    np.testing.assert_array_equal(array, other[name], strict=True)


@pytest.mark.parametrize('storage', ['memory', 'disk', 'decode', 'device'])
@pytest.mark.parametrize('most', [1, 3])
@pytest.mark.parametrize('repeats', [1, 2])
def test_batches_are_identical_wherever_records_are(
    root, storage, most, repeats
):
  config = _config(
      **{
          'steps_per_dispatch': most,
          'data.storage': storage,
          'data.repeats': repeats,
      }
  )
  kept = storage if storage in datasets.STORAGES else 'memory'
  how = {'image_size': (6, 7)}
  records = datasets.load('own', 'train', str(root), storage=kept, **how)
  opened = _feed(config, records)
  found = _batches(opened)
  opened.close()
  # By the definition, from the pictures themselves.
  decoded = datasets.load('own', 'train', str(root), storage='decode', **how)
  order = batches_lib.train_batches(
      decoded, batch_size=_BATCH, seed=3, repeats=repeats
  )
  assert list(found) == list(range(1, 20))
  for batch in found.values():
    _same(batch, next(order))


def test_what_is_sent_of_resident_records_is_rows():
  config = _config(**{'data.storage': 'device'})
  supply = next(_feed(config, tiny.arrays(0, _RECORDS))).supply
  assert supply.batches.keys() == {'row'}
  assert supply.batches['row'].shape == (3, _BATCH)


def test_dispatches_end_at_readings_milestones_and_the_stop():
  # Read after 5, 10, 15; epoch 2 ends with step 13, epoch 3 with step 19.
  lasts = [
      [
          dispatch.last
          for dispatch in _feed(
              _config(**{'steps_per_dispatch': m}), tiny.arrays(0, _RECORDS)
          )
      ]
      for m in (1, 3, 100)
  ]
  assert lasts[0] == list(range(1, 20))
  assert lasts[1] == [3, 5, 8, 10, 13, 15, 18, 19]
  assert lasts[2] == [5, 10, 13, 15, 19]


@pytest.mark.parametrize('start', [3, 5, 12, 18])
def test_from_a_step_on_batches_are_those_of_the_unbroken_feed(start):
  records = tiny.arrays(0, _RECORDS)
  unbroken = _batches(_feed(_config(), records))
  resumed = _batches(_feed(_config(), records, start))
  assert list(resumed) == list(range(start + 1, 20))
  for step, batch in resumed.items():
    _same(batch, unbroken[step])


@pytest.mark.parametrize(
    ('backend', 'changes', 'most'),
    [
        ('cpu', {}, 1),
        ('cpu', {'steps_per_dispatch': 7}, 7),
        ('cpu', {'steps_per_dispatch': 10**9, 'log_every_steps': 20}, 20),
        ('gpu', {'steps_per_dispatch': 7, 'log_every_steps': 1}, 2),
        ('gpu', {'steps_per_dispatch': 1}, 1),
        ('gpu', {}, 50),
        ('gpu', {'log_every_steps': 20}, 20),
        ('gpu', {'log_every_steps': 1}, 2),
        ('gpu', {'batch_size': 17000}, 31),  # 2,142,000 bytes each
        ('gpu', {'batch_size': 17000, 'data.storage': 'device'}, 50),
        ('gpu', {'batch_size': 2**20}, 2),
    ],
)
def test_how_many_steps_a_dispatch_has(monkeypatch, backend, changes, most):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  config = _config(
      **{'steps_per_dispatch': 0, 'log_every_steps': 1000, **changes}
  )
  records = resident.place(
      tiny.arrays(0, 5), config.data.storage, jax.device_put
  )
  assert feed.steps_per_dispatch(config, records) == most
