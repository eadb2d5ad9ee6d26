"""Tests batches of records: order, shares, crops, threads and workers."""

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading

import folder_data
import numpy as np
import processes
import pytest

from gswinrmt_jax.data import (
    batches as batches_lib,
)
from gswinrmt_jax.data import (
    datasets,
    parallel,
    pictures,
    sources,
)
from gswinrmt_jax.data import records as records_lib
from gswinrmt_jax.errors import UserError

# The order of Grain 0.2.18; see `test_the_order_is_what_it_always_was`.
_ORDER = [
    [0, 2, 7, 6, 11, 19, 13, 16, 1, 10, 3, 14, 15],
    [18, 9, 12, 4, 8, 17, 5, 13, 6, 15, 16, 17, 4],
]


def numbered(count):
  """Returns images filled with their own number, which is also the label."""
  label = np.arange(count, dtype=np.int32)
  image = np.broadcast_to(label[:, None, None, None], (count, 5, 4, 3))
  return records_lib.Arrays(image.astype(np.uint8), label)


def take(count, **kwargs):
  with contextlib.closing(batches_lib.train_batches(**kwargs)) as stream:
    return list(itertools.islice(stream, count))


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
  # 7 batches of 11 are 11 epochs of 7: epochs end inside batches.
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
  # The orders of neighbouring seeds are not shifted copies of each other.
  assert order(2) != order(1, start=2) and order(1) != order(2, start=2)


@pytest.mark.parametrize('repeats', [2, 3])
def test_repeats_are_in_one_batch_and_no_partners(repeats):
  count, size, steps = 41, 12, 41  # twelve epochs
  batches = take(
      steps, records=numbered(count), batch_size=size, seed=5, repeats=repeats
  )
  single = take(steps, records=numbered(count), batch_size=size, seed=5)
  order = np.concatenate([batch['label'] for batch in single])
  # By definition, an epoch takes the first records of its order, each `repeats`
  # times in a row, until it has its usual length.
  stream = []
  for epoch in order.reshape(-1, count):
    stream += [record for record in epoch for _ in range(repeats)][:count]
  seen = np.reshape(stream, (steps, size))
  for batch, want in zip(batches, seen, strict=True):
    label = batch['label']
    places = [
        k for r in range(repeats) for k in range(size) if k % repeats == r
    ]
    assert label.tolist() == want[places].tolist()
  # Each epoch has its own order.
  firsts = {tuple(epoch) for epoch in np.reshape(stream, (-1, count))}
  assert len(firsts) == 12


@pytest.mark.parametrize('repeats', [2, 3, 4])
@pytest.mark.parametrize('extra', [0, 1, 2, 3, 5])
def test_partners_are_never_copies(repeats, extra):
  """Partners are rows i and i^1; the smallest batch is as small as allowed."""
  size = 3 * repeats + extra
  records = numbered(200)  # so many that no epoch ends
  for batch in take(
      9, records=records, batch_size=size, seed=1, repeats=repeats
  ):
    label = batch['label']
    assert len(set(label)) <= -(-size // repeats) + 1
    even = label[: size // 2 * 2].reshape(-1, 2)
    assert (even[:, 0] != even[:, 1]).all()


def test_repeats_start_at_any_step():
  records = numbered(13)
  unbroken = take(9, records=records, batch_size=8, seed=9, repeats=3)
  resumed = take(
      4, records=records, batch_size=8, seed=9, repeats=3, start_step=5
  )
  for expected, batch in zip(unbroken[5:], resumed, strict=True):
    np.testing.assert_array_equal(batch['label'], expected['label'])


def test_the_order_is_what_it_always_was():
  """Resumed runs of earlier versions must see the records they would have."""
  batches = take(2, records=numbered(20), batch_size=13, seed=4)
  assert [batch['label'].tolist() for batch in batches] == _ORDER


def test_eval_batches_hold_each_record_once_and_mask_the_padding():
  batches = list(batches_lib.eval_batches(numbered(11), batch_size=4))
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


def _joined(parts):
  """Yields each batch, concatenated from its shares."""
  for batches in zip(*parts, strict=True):
    yield {
        name: np.concatenate([batch[name] for batch in batches])
        for name in batches[0]
    }


def _assert_equal(batches, others):
  for batch, other in zip(batches, others, strict=True):
    assert batch.keys() == other.keys()
    for name, array in batch.items():
      np.testing.assert_array_equal(array, other[name], err_msg=name)
      assert array.dtype == other[name].dtype


@pytest.mark.parametrize('repeats', [1, 3])
@pytest.mark.parametrize('crop', [False, True])
def test_shares_are_the_batch_and_each_record_is_read_once(repeats, crop):
  """Four processes read the records and draw the crops that one would."""
  records = numbered(20)
  if crop:
    source = sources.ArraySource(records.image, records.label)
    records = records_lib.Decoded(source, (5, 4), pictures.RandomCrop())
  how = {'batch_size': 12, 'seed': 1, 'start_step': 2, 'repeats': repeats}
  whole = take(5, records=records, **how)
  parts = [take(5, records=records, **how, share=(i, 4)) for i in range(4)]
  assert {len(batch['label']) for part in parts for batch in part} == {3}
  _assert_equal(_joined(parts), whole)
  rows = [row for part in parts for b in part for row in b['row'].tolist()]
  # These are 60 records from the 24th on: without repeats, two whole epochs.
  stream = np.concatenate([batch['row'] for batch in whole]).tolist()
  assert sorted(rows) == sorted(stream)
  if repeats == 1:
    assert sorted(stream[16:36]) == sorted(stream[36:56]) == list(range(20))


@pytest.mark.parametrize('count', [11, 12, 5, 3])
def test_shares_of_evaluation_are_the_padded_batch(count):
  """Some shares of the last batch are all padding; in memory and decoded."""
  whole = list(batches_lib.eval_batches(numbered(count), batch_size=8))
  for records in (numbered(count), _decoded(count)):
    parts = [
        list(batches_lib.eval_batches(records, batch_size=8, share=(i, 4)))
        for i in range(4)
    ]
    assert {len(batch['mask']) for part in parts for batch in part} == {2}
    _assert_equal(
        _joined(parts), batches_lib.eval_batches(records, batch_size=8)
    )
  assert sum(batch['mask'].sum() for batch in whole) == count


def test_eval_batches_that_divide_have_no_padding():
  batches = list(batches_lib.eval_batches(numbered(12), batch_size=4))
  assert len(batches) == 3
  assert all(batch['mask'].all() for batch in batches)


def test_eval_pads_a_split_smaller_than_a_batch():
  (batch,) = batches_lib.eval_batches(numbered(2), batch_size=500)
  assert batch['image'].shape == (500, 5, 4, 3)
  assert batch['mask'].sum() == 2


def test_eval_batches_of_rows_name_the_records_and_the_padding():
  rows = records_lib.Rows(11, (5, 4, 3))
  batches = list(batches_lib.eval_batches(rows, batch_size=4))
  want = batches_lib.eval_batches(numbered(11), batch_size=4)
  assert [batch['row'].tolist() for batch in batches] == [
      [0, 1, 2, 3],
      [4, 5, 6, 7],
      [8, 9, 10, 11],
  ]
  for batch, other in zip(batches, want, strict=True):
    assert batch.keys() == {'row', 'mask'} and batch['row'].dtype == np.int32
    np.testing.assert_array_equal(batch['mask'], other['mask'], strict=True)


def test_a_whole_batch_is_not_copied(monkeypatch):
  records, gathered = numbered(5), []
  gather = records_lib.Arrays.gather
  monkeypatch.setattr(
      records_lib.Arrays,
      'gather',
      lambda self, rows: gathered.append(gather(self, rows)) or gathered[-1],
  )
  batches = list(batches_lib.eval_batches(records, batch_size=4))
  assert batches[0]['image'] is gathered[0]['image']
  assert batches[1]['image'].shape == (4, 5, 4, 3)


def _decoded(count, workers=0):
  arrays = numbered(count)
  source = sources.ArraySource(arrays.image, arrays.label)
  return records_lib.Decoded(source, workers=workers)


@pytest.mark.parametrize(('count', 'size'), [(11, 4), (12, 4), (5, 2), (3, 9)])
def test_eval_decodes_the_same_in_parts(count, size, monkeypatch):
  monkeypatch.setattr(batches_lib, '_PART', 3)  # a batch of 4 is split 3 + 1
  want = batches_lib.eval_batches(numbered(count), batch_size=size)
  found = batches_lib.eval_batches(_decoded(count), batch_size=size)
  for batch, other in zip(found, want, strict=True):
    assert batch.keys() == other.keys() == {'image', 'label', 'mask'}
    for name, array in batch.items():
      np.testing.assert_array_equal(array, other[name])
      assert array.dtype == other[name].dtype


def test_eval_decodes_in_threads_and_no_processes(monkeypatch):
  monkeypatch.setattr(parallel, 'cores', lambda: 2)
  records = _decoded(4 * batches_lib._PART, workers=2)
  together, gather = threading.Barrier(2, timeout=20), records.gather

  def wait_for_another(rows):
    together.wait()
    return gather(rows)

  records.gather = wait_for_another
  batches = list(
      batches_lib.eval_batches(records, batch_size=batches_lib._PART)
  )
  assert len(batches) == 4
  assert not multiprocessing.active_children()


def test_a_killed_worker_is_one_line():
  digits = datasets.load('digits', 'val', storage='decode', workers=1)
  batches = batches_lib.train_batches(digits, batch_size=9, seed=0)
  next(batches)
  os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
  with pytest.raises(UserError, match=r'killed.*memory or /dev/shm') as caught:
    for _ in range(9):
      next(batches)
  assert 'config.data.workers' in str(caught.value)
  assert '\n' not in str(caught.value)


def _source(count=9):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (count, 30, 40, 3), np.uint8)
  return sources.ArraySource(image, np.arange(count, dtype=np.int32))


def test_a_batch_says_what_was_cropped_of_which_record():
  source = _source()
  records = records_lib.Decoded(source, (6, 5), pictures.RandomCrop())
  assert len(records) == 9 and records.image_shape == (6, 5, 3)
  (batch,) = take(1, records=records, batch_size=9, seed=3)
  assert batch['row'].dtype == np.int32 and batch['box'].dtype == np.float32
  assert sorted(batch['row']) == list(range(9))
  np.testing.assert_array_equal(batch['label'], batch['row'])
  sides = np.array([30, 40, 30, 40])
  for image, box, row in zip(
      batch['image'], batch['box'], batch['row'], strict=True
  ):
    top, left, height, width = np.rint(box * sides).astype(int)
    np.testing.assert_allclose(box * sides, [top, left, height, width], 1e-5)
    picture = source.image[row, top : top + height, left : left + width]
    want = pictures.fit(sources.PIL.Image.fromarray(picture), (6, 5), 0.0)
    np.testing.assert_array_equal(image, want)


def test_every_position_of_the_stream_has_draws_of_its_own():
  records = records_lib.Decoded(_source(), (6, 5), pictures.RandomCrop())
  # Twelve epochs with every record twice: nearly all boxes are different.
  batches = take(12, records=records, batch_size=9, seed=3, repeats=2)
  boxes = np.concatenate([batch['box'] for batch in batches])
  assert len(np.unique(boxes, axis=0)) > 0.95 * len(boxes)
  other = take(1, records=records, batch_size=9, seed=4)
  assert (other[0]['box'] != batches[0]['box']).any(1).all()
  # Position 17 has the same draw in any batch.
  (single,) = take(1, records=records, batch_size=1, seed=3, start_step=17)
  (pair,) = take(1, records=records, batch_size=2, seed=3, start_step=8)
  _assert_equal([single], [{name: pair[name][1:] for name in pair}])


@pytest.mark.parametrize('repeats', [1, 2])
def test_it_starts_at_any_step(repeats, monkeypatch):
  monkeypatch.setattr(batches_lib, '_PART', 2)  # two parts in a batch
  records = records_lib.Decoded(_source(), (6, 5), pictures.RandomCrop())
  settings = {'batch_size': 4, 'seed': 1, 'repeats': repeats}
  unbroken = take(7, records=records, **settings)
  _assert_equal(
      unbroken[5:], take(2, records=records, start_step=5, **settings)
  )


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  examples = folder_data.examples(13)
  damaged = ('bee/bad.jpg', examples[1][1][:300], 1)
  folder_data.write(root, {'train': examples, 'val': [*examples[:8], damaged]})
  return root


def test_workers_change_nothing(root):
  settings = {'batch_size': 4, 'seed': 1, 'repeats': 2, 'start_step': 3}
  found = [
      take(
          5,
          records=datasets.load(
              'own',
              'train',
              str(root),
              image_size=(6, 5),
              storage='decode',
              workers=workers,
              crop=pictures.RandomCrop(),
          ),
          **settings,
      )
      for workers in (0, 2)
  ]
  _assert_equal(*found)
  assert type(found[1][0]['image']) is np.ndarray


def test_storages_give_the_same_batches(root):
  settings = {'batch_size': 5, 'seed': 2, 'start_step': 2}
  trained, evaluated = [], []
  for storage in ('memory', 'disk', 'decode'):
    records = datasets.load(
        'own', 'train', str(root), image_size=(6, 5), storage=storage
    )
    trained.append(take(4, records=records, **settings))
    evaluated.append(list(batches_lib.eval_batches(records, batch_size=5)))
  for others in trained[1:]:
    _assert_equal(trained[0], others)
  for others in evaluated[1:]:
    _assert_equal(evaluated[0], others)


@pytest.mark.parametrize('workers', [0, 1])
def test_a_damaged_record_is_named_in_the_middle_of_it(root, workers):
  records = datasets.load(
      'own',
      'val',
      str(root),
      image_size=(6, 5),
      storage='decode',
      workers=workers,
  )
  with pytest.raises(
      UserError, match=r'record \d of .val. \(bee/bad\.jpg\) is'
  ):
    take(9, records=records, batch_size=1, seed=0)


def _noise(count):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (count, 6, 8, 3), np.uint8)
  return sources.ArraySource(image, rng.integers(0, 9, count).astype(np.int32))


class _Uneven(sources.ArraySource):
  """A source whose fourth image is wider."""

  def __getitem__(self, row):
    picture, label = super().__getitem__(row)
    return (picture.resize((9, 6)) if row == 3 else picture), label


def test_without_a_size_images_are_as_stored():
  source = _noise(5)
  decoded = records_lib.Decoded(source)
  assert decoded.image_shape == (6, 8, 3) and len(decoded) == 5
  batch = decoded.gather(np.array([4, 1]))
  np.testing.assert_array_equal(batch['image'], source.image[[4, 1]])
  np.testing.assert_array_equal(batch['label'], source.label[[4, 1]])
  assert batch['label'].dtype == np.int32


@pytest.mark.parametrize('crop', [0.0, 0.75])
def test_with_a_size_they_are_fitted(crop):
  source = _noise(3)
  decoded = records_lib.Decoded(source, (5, 4), crop)
  batch = decoded.gather(range(3))
  for row, image in enumerate(batch['image']):
    picture, _ = source[row]
    np.testing.assert_array_equal(image, pictures.fit(picture, (5, 4), crop))


@pytest.mark.parametrize('threads', [1, 3])
def test_memory_holds_every_record_in_its_place(threads, monkeypatch):
  monkeypatch.setattr(records_lib, '_CHUNK', 4)  # does not divide 19
  monkeypatch.setattr(parallel, 'cores', lambda: threads)
  source = _noise(19)
  arrays = records_lib.to_memory(records_lib.Decoded(source))
  np.testing.assert_array_equal(arrays.image, source.image)
  np.testing.assert_array_equal(arrays.label, source.label)
  batch = arrays.gather(np.array([18, 0]))
  np.testing.assert_array_equal(batch['image'], source.image[[18, 0]])


def test_sizes_that_differ_are_one_line():
  source = _noise(5)
  uneven = records_lib.Decoded(_Uneven(source.image, source.label))
  uneven.gather(range(3))
  said = 'record 3 has 9 x 6 pixels, the first 8 x 6: set config.data.image_si'
  for gather in (
      lambda: uneven.gather([2, 3]),
      lambda: records_lib.to_memory(uneven),
  ):
    with pytest.raises(UserError, match=said):
      gather()
  fitted = records_lib.Decoded(_Uneven(source.image, source.label), (4, 4))
  assert records_lib.to_memory(fitted).image.shape == (5, 4, 4, 3)


def test_what_memory_cannot_hold_is_refused(monkeypatch):
  decoded = records_lib.Decoded(_noise(5))
  memory = {'SC_PAGE_SIZE': 10, 'SC_PHYS_PAGES': 71}  # 720 bytes are needed
  monkeypatch.setattr(os, 'sysconf', memory.get)
  with pytest.raises(UserError, match='5 images of 6 x 8 pixels would take'):
    records_lib.to_memory(decoded)
  memory['SC_PHYS_PAGES'] = 72
  assert len(records_lib.to_memory(decoded)) == 5


def test_threads_read_ahead_but_not_all(monkeypatch):
  monkeypatch.setattr(parallel, 'cores', lambda: 3)
  begun = []
  for taken, value in enumerate(
      parallel.in_threads(lambda i: begun.append(i) or i, 90)
  ):
    assert value == taken
    assert len(begun) - taken <= 3 * parallel.AHEAD + 4
  assert sorted(begun) == list(range(90))


@pytest.mark.parametrize('kind', ['decoded', 'cropped'])
def test_training_without_workers_decodes_in_threads(kind, monkeypatch):
  """The barrier times out unless the parts of a batch are read in parallel."""
  monkeypatch.setattr(parallel, 'cores', lambda: 2)
  monkeypatch.setattr(batches_lib, '_PART', 4)
  source = _noise(20)
  together = threading.Barrier(2, timeout=20)
  records = (
      records_lib.Decoded(source)
      if kind == 'decoded'
      else records_lib.Decoded(source, (6, 8), pictures.RandomCrop())
  )
  want = take(3, records=records, batch_size=8, seed=0)
  gather = records.gather

  def wait_for_another(*arguments):
    together.wait()
    return gather(*arguments)

  records.gather = wait_for_another
  found = take(3, records=records, batch_size=8, seed=0)
  _assert_equal(found, want)


def test_all_bits_of_a_seed_count():
  crops = records_lib.Decoded(_noise(20), (4, 4), pictures.RandomCrop())
  for records in (numbered(20), crops):
    first, second = (
        take(1, records=records, batch_size=20, seed=seed)[0]
        for seed in (3, 3 + 2**32)
    )
    assert first['row'].tolist() != second['row'].tolist()
  by_row = [batch['box'][np.argsort(batch['row'])] for batch in (first, second)]
  assert (by_row[0] != by_row[1]).any(1).all()


def test_workers_end_with_a_killed_process():
  """Even while they wait with batches that nobody will take."""
  code = (
      'import multiprocessing, os, signal\n'
      'from gswinrmt_jax.data import batches, datasets\n'
      "digits = datasets.load('digits', 'val', storage='decode', workers=1)\n"
      'stream = batches.train_batches(digits, batch_size=9, seed=0)\n'
      'next(stream)\n'
      'print(multiprocessing.active_children()[0].pid, flush=True)\n'
      'os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  child = processes.child_of_killed(code)
  processes.wait_for_end(child)
