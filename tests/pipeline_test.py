import collections
import itertools

import numpy as np
import pytest

from gswinrmt_jax.data import pipeline
from gswinrmt_jax.data import records as records_lib


def numbered(count):
  """Every image is filled with its own number, which is its label too."""
  label = np.arange(count, dtype=np.int32)
  image = np.broadcast_to(label[:, None, None, None], (count, 5, 4, 3))
  return records_lib.Arrays(image.astype(np.uint8), label)


def take(count, **kwargs):
  return list(itertools.islice(pipeline.train_batches(**kwargs), count))


def test_batches_are_uint8_images_with_their_own_labels():
  batches = take(6, records=numbered(11), batch_size=7, seed=3)
  for batch in batches:
    assert set(batch) == {'image', 'label', 'row'}
    assert batch['image'].shape == (7, 5, 4, 3)
    assert batch['image'].dtype == np.uint8
    assert batch['label'].dtype == np.int32
    assert batch['row'].dtype == np.int32
    np.testing.assert_array_equal(batch['image'][:, 4, 3, 2], batch['label'])
    np.testing.assert_array_equal(batch['row'], batch['label'])


def test_every_epoch_holds_each_record_once_across_batches():
  # 7 batches of 11 are 11 epochs of 7: no batch ends where an epoch does.
  batches = take(7, records=numbered(7), batch_size=11, seed=0)
  stream = np.concatenate([batch['label'] for batch in batches])
  epochs = stream.reshape(11, 7)
  for epoch in epochs:
    assert sorted(epoch.tolist()) == list(range(7))
  assert len(collections.Counter(map(tuple, epochs))) > 5  # reshuffled


@pytest.mark.parametrize('start', [1, 2, 5, 23])
def test_starting_at_a_step_gives_the_rest_of_the_stream(start):
  arrays = numbered(13)
  unbroken = take(start + 4, records=arrays, batch_size=5, seed=9)
  resumed = take(4, records=arrays, batch_size=5, seed=9, start_step=start)
  for expected, batch in zip(unbroken[start:], resumed, strict=True):
    np.testing.assert_array_equal(batch['label'], expected['label'])
    np.testing.assert_array_equal(batch['image'], expected['image'])


def test_order_follows_the_seed():
  arrays = numbered(60)

  def order(seed, start=0):
    batches = take(
        2, records=arrays, batch_size=30, seed=seed, start_step=start
    )
    return np.concatenate([batch['label'] for batch in batches]).tolist()

  assert order(1) == order(1)
  assert order(1) != order(2)
  assert order(1) != list(range(60))
  # Neighbouring seeds are no shifted copies of one another.
  assert order(2) != order(1, start=2) and order(1) != order(2, start=2)


def test_eval_batches_hold_each_record_once_and_mask_the_padding():
  batches = list(pipeline.eval_batches(numbered(11), batch_size=4))
  assert [batch['mask'].tolist() for batch in batches] == [
      [1, 1, 1, 1],
      [1, 1, 1, 1],
      [1, 1, 1, 0],
  ]
  for batch in batches:
    assert batch['image'].shape == (4, 5, 4, 3)
    assert batch['image'].dtype == np.uint8
    assert batch['label'].dtype == np.int32
    assert batch['mask'].dtype == np.float32
    real = batch['mask'] == 1
    np.testing.assert_array_equal(
        batch['image'][real, 0, 0, 0], batch['label'][real]
    )
  assert not batches[-1]['image'][3].any()
  labels = np.concatenate([b['label'][b['mask'] == 1] for b in batches])
  assert labels.tolist() == list(range(11))


def test_eval_batches_that_divide_have_no_padding():
  batches = list(pipeline.eval_batches(numbered(12), batch_size=4))
  assert len(batches) == 3
  assert all(batch['mask'].all() for batch in batches)


def test_eval_pads_a_split_smaller_than_a_batch():
  (batch,) = pipeline.eval_batches(numbered(2), batch_size=500)
  assert batch['image'].shape == (500, 5, 4, 3)
  assert batch['mask'].sum() == 2
