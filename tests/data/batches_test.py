"""Tests batches of records: order, shares, crops, threads and workers."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from unittest import mock

import folder_data
import grain
import numpy as np
import PIL.Image
import processes
import pytest

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, parallel, resizing
from gswinrmt_jax.data import records as records_lib
from gswinrmt_jax.data.records import Arrays, Images
from gswinrmt_jax.errors import UserError

# The order of Grain 0.2.18; see `test_the_order_is_what_it_always_was`.
_ORDER = [
    [0, 2, 7, 6, 11, 19, 13, 16, 1, 10, 3, 14, 15],
    [18, 9, 12, 4, 8, 17, 5, 13, 6, 15, 16, 17, 4],
]


@pytest.fixture(autouse=True)
def parts(monkeypatch):
  """Batches of more than four are made of parts, which may straddle them."""
  monkeypatch.setattr(batches_lib, '_PART', 4)


def numbered(count):
  """Returns images filled with their own number, which is also the label."""
  label = np.arange(count, dtype=np.int32)
  image = np.broadcast_to(label[:, None, None, None], (count, 5, 4, 3))
  return Arrays(image.astype(np.uint8), label)


def noise(count=9):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (count, 30, 40, 3), np.uint8)
  return Arrays(image, np.arange(count, dtype=np.int32))


def cropped(count=9):
  return Images(noise(count), (6, 5), resizing.RandomCrop())


def take(count, records, **how):
  with contextlib.closing(batches_lib.train_batches(records, **how)) as stream:
    return list(itertools.islice(stream, count))


def evaluated(records, **how):
  return list(batches_lib.eval_batches(records, **how))


def _assert_equal(batches, others):
  for batch, other in zip(batches, others, strict=True):
    assert batch.keys() == other.keys()
    for name, array in batch.items():
      np.testing.assert_array_equal(array, other[name], name, strict=True)


def _joined(parts):
  """Yields each batch, concatenated from its shares."""
  for batches in zip(*parts, strict=True):
    yield {
        name: np.concatenate([batch[name] for batch in batches])
        for name in batches[0]
    }


@pytest.mark.parametrize('of', [lambda arrays: arrays, Images])
def test_batches_are_images_with_their_own_labels(of):
  batches = take(6, of(numbered(11)), batch_size=7, seed=3)
  for batch in batches:
    assert {k: (v.dtype, v.shape) for k, v in batch.items()} == {
        'image': (np.uint8, (7, 5, 4, 3)),
        'label': (np.int32, (7,)),
        'row': (np.int32, (7,)),
    }
    np.testing.assert_array_equal(batch['image'][:, 4, 3, 2], batch['label'])
    np.testing.assert_array_equal(batch['row'], batch['label'])


def test_every_epoch_has_each_record_once_in_another_order():
  # 7 batches of 11 are 11 epochs of 7: epochs end inside batches.
  batches = take(7, numbered(7), batch_size=11, seed=0)
  epochs = np.concatenate([batch['label'] for batch in batches]).reshape(11, 7)
  assert all(sorted(epoch) == list(range(7)) for epoch in epochs.tolist())
  assert len(set(map(tuple, epochs))) > 5


@pytest.mark.parametrize('start', [1, 5])  # in the first, and a later epoch
@pytest.mark.parametrize('repeats', [1, 2])
@pytest.mark.parametrize('records', [numbered(13), cropped()])
def test_from_a_step_on_it_is_the_rest_of_the_stream(start, repeats, records):
  how = {'batch_size': 6, 'seed': 9, 'repeats': repeats}
  unbroken = take(start + 4, records, **how)
  _assert_equal(unbroken[start:], take(4, records, **how, start_step=start))


def test_order_and_crops_follow_all_bits_of_the_seed():
  seeds = (1, 2, 1 + 2**32)
  found = [
      take(2, records, batch_size=20, seed=seed)
      for records in (numbered(40), cropped(40))
      for seed in seeds
  ]
  for first, *others in (found[:3], found[3:]):
    for other in others:
      # The orders of neighbouring seeds are not shifted copies of each other.
      for a, b in itertools.product(first, other):
        assert a['row'].tolist() != b['row'].tolist()
        assert 'box' not in a or (a['box'] != b['box']).any(1).all()
  assert found[0][0]['row'].tolist() != list(range(20))


@pytest.mark.parametrize('repeats', [2, 3])
def test_repeats_are_in_one_batch_and_no_partners(repeats):
  count, size, steps = 11, 12, 11  # twelve epochs
  how = {'batch_size': size, 'seed': 5}
  single = take(steps, numbered(count), **how)
  order = np.concatenate([batch['label'] for batch in single])
  # By definition, an epoch takes the first records of its order, each `repeats`
  # times in a row, until it has its usual length.
  stream = []
  for epoch in order.reshape(-1, count):
    stream += [record for record in epoch for _ in range(repeats)][:count]
  places = [k for r in range(repeats) for k in range(size) if k % repeats == r]
  batches = take(steps, numbered(count), **how, repeats=repeats)
  for batch, want in zip(batches, np.reshape(stream, (-1, size)), strict=True):
    assert batch['label'].tolist() == want[places].tolist()


@pytest.mark.parametrize('repeats', [2, 3, 4])
@pytest.mark.parametrize('extra', [0, 1, 2, 3, 5])
def test_partners_are_never_copies(repeats, extra):
  """Partners are rows i and i^1; the smallest batch is as small as allowed."""
  size = 3 * repeats + extra
  records = numbered(200)  # so many that no epoch ends
  for batch in take(9, records, batch_size=size, seed=1, repeats=repeats):
    even = batch['label'][: size // 2 * 2].reshape(-1, 2)
    assert len(set(batch['label'])) <= -(-size // repeats) + 1
    assert (even[:, 0] != even[:, 1]).all()


def test_the_order_is_what_it_always_was():
  """Resumed runs of earlier versions must see the records they would have."""
  batches = take(2, numbered(20), batch_size=13, seed=4)
  assert [batch['label'].tolist() for batch in batches] == _ORDER


@pytest.mark.parametrize('repeats', [1, 3])
@pytest.mark.parametrize(
    ('records', 'part'),
    [
        (numbered(20), 64),  # gathered, which knows no parts
        (cropped(20), 1),
        (cropped(20), 2),
        (cropped(20), 64),
    ],
)
def test_shares_are_the_batch_and_each_record_is_read_once(
    repeats, records, part, monkeypatch
):
  """Four processes read the records and draw the crops that one would.

  In whichever parts of its batch a process decodes.
  """
  monkeypatch.setattr(batches_lib, '_PART', part)
  how = {'batch_size': 12, 'seed': 1, 'start_step': 2, 'repeats': repeats}
  whole = take(5, records, **how)
  parts = [take(5, records, **how, share=(i, 4)) for i in range(4)]
  assert {len(batch['label']) for part in parts for batch in part} == {3}
  _assert_equal(_joined(parts), whole)
  if repeats == 1:
    # These are 60 records from the 24th on: whole epochs are the 16th to 55th.
    stream = np.concatenate([batch['row'] for batch in whole]).tolist()
    assert sorted(stream[16:36]) == sorted(stream[36:56]) == list(range(20))


@pytest.mark.parametrize('of', [lambda arrays: arrays, Images])
@pytest.mark.parametrize(
    ('count', 'size'), [(11, 4), (12, 4), (5, 8), (2, 500)]
)
def test_evaluation_has_each_record_once_and_masks_the_padding(of, count, size):
  arrays = numbered(count)
  batches = evaluated(of(arrays), batch_size=size)
  mask = np.concatenate([batch['mask'] for batch in batches])
  assert mask.tolist() == [1] * count + [0] * (-count % size)
  for batch in batches:
    assert {k: (v.dtype, v.shape) for k, v in batch.items()} == {
        'image': (np.uint8, (size, 5, 4, 3)),
        'label': (np.int32, (size,)),
        'mask': (np.float32, (size,)),
    }
    np.testing.assert_array_equal(batch['image'][:, 0, 0, 0], batch['label'])
  labels = np.concatenate([batch['label'] for batch in batches])
  assert labels.tolist() == [*range(count)] + [count - 1] * (-count % size)
  # Some shares of the last batch are all padding.
  if size % 4 == 0:
    parts = [
        evaluated(of(arrays), batch_size=size, share=(i, 4)) for i in range(4)
    ]
    _assert_equal(_joined(parts), batches)


def test_the_image_of_the_padding_is_decoded_once(monkeypatch):
  """Or once in each thread, if several ask for it at the same time."""
  load, rows = Images.load, []

  def counted(self, row):
    rows.append(row)
    return load(self, row)

  monkeypatch.setattr(Images, 'load', counted)
  evaluated(Images(noise(9)), batch_size=250)
  assert rows.count(8) <= 1 + parallel.cores()


def test_a_box_says_what_was_cropped_of_which_record():
  (batch,) = take(1, cropped(), batch_size=9, seed=3)
  assert batch['box'].dtype == np.float32
  sides = np.array([30, 40, 30, 40])
  for image, box, row in zip(
      batch['image'], batch['box'], batch['row'], strict=True
  ):
    top, left, height, width = np.rint(box * sides).astype(int)
    np.testing.assert_allclose(box * sides, [top, left, height, width], 1e-5)
    picture = noise().image[row, top : top + height, left : left + width]
    want = resizing.center_crop(PIL.Image.fromarray(picture), (6, 5), 0.0)
    np.testing.assert_array_equal(image, want)


def test_every_position_of_the_stream_has_draws_of_its_own():
  # Twelve epochs with every record twice: nearly all boxes are different.
  batches = take(12, cropped(), batch_size=9, seed=3, repeats=2)
  boxes = np.concatenate([batch['box'] for batch in batches])
  assert len(np.unique(boxes, axis=0)) > 0.95 * len(boxes)
  # Position 17 has the same draw in any batch.
  (single,) = take(1, cropped(), batch_size=1, seed=3, start_step=17)
  (pair,) = take(1, cropped(), batch_size=2, seed=3, start_step=8)
  _assert_equal([single], [{name: pair[name][1:] for name in pair}])


def test_draws_depend_on_seed_and_position_as_they_always_did():
  """Resumed runs of earlier versions must see the crops they would have."""
  (batch,) = take(1, cropped(), batch_size=5, seed=3, start_step=2)
  for position, box in enumerate(batch['box'], 10):
    key = np.array([3, position], np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    drawn = resizing.draw_box(40, 30, resizing.RandomCrop(), rng)
    left, top, across, down = drawn
    want = np.float32([top / 30, left / 40, down / 30, across / 40])
    np.testing.assert_array_equal(box, want)


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  examples = folder_data.examples(13)
  damaged = ('bee/bad.jpg', examples[1][1][:300], 1)
  folder_data.write(root, {'train': examples, 'val': [*examples[:8], damaged]})
  return root


def _load(root, split='train', **how):
  return datasets.load('own', split, str(root), image_size=(6, 5), **how)


def test_workers_change_nothing_and_a_killed_one_is_one_line(root):
  how = {'batch_size': 4, 'seed': 1, 'repeats': 2, 'start_step': 3}
  random = {'storage': 'decode', 'training': resizing.RandomCrop()}
  alone = take(5, _load(root, **random, workers=0), **how)
  helped = batches_lib.train_batches(_load(root, **random, workers=2), **how)
  with contextlib.closing(helped):
    found = list(itertools.islice(helped, 5))
    _assert_equal(alone, found)
    assert type(found[0]['image']) is np.ndarray
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    said = 'memory or /dev/shm'
    with pytest.raises(UserError, match=said) as caught:
      for _ in range(40):  # more than both read ahead
        next(helped)
  assert 'config.data.workers' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_storages_give_the_same_batches(root):
  first, *others = (
      _load(root, storage=storage) for storage in ('memory', 'disk', 'decode')
  )
  how = {'batch_size': 5, 'seed': 2, 'start_step': 2}
  for other in others:
    assert len(other) == 13 and other.image_shape == (6, 5, 3)
    _assert_equal(take(4, first, **how), take(4, other, **how))
    _assert_equal(
        evaluated(first, batch_size=5), evaluated(other, batch_size=5)
    )


@pytest.mark.parametrize('workers', [0, 1])
def test_a_damaged_record_is_named_in_the_middle_of_it(root, workers):
  records = _load(root, 'val', storage='decode', workers=workers)
  said = r'own: record \d of .val. \(bee/bad\.jpg\) is'
  with pytest.raises(UserError, match=said):
    take(9, records, batch_size=1, seed=0)


class _Uneven(Arrays):
  """A source whose fourth image is wider."""

  def __getitem__(self, row):
    picture, label = super().__getitem__(row)
    return (picture.resize((9, 6)) if row == 3 else picture), label


@pytest.mark.parametrize('crop', [None, 0.0, 0.75])
def test_records_are_as_stored_or_fitted_to_a_size(crop):
  source = noise(3)
  size = None if crop is None else (5, 4)
  images = Images(source, size, eval_crop=crop or 0.0)
  assert images.image_shape == (*(size or (30, 40)), 3) and len(images) == 3
  for row in range(3):
    picture, label = source[row]
    want = (
        resizing.center_crop(picture, size, crop) if size else source.image[row]
    )
    np.testing.assert_array_equal(images.read(row)['image'], want)
    assert images.read(row)['label'] == label


@pytest.mark.parametrize('threads', [1, 3])
def test_memory_has_every_record_in_its_place(threads, monkeypatch):
  monkeypatch.setattr(records_lib, '_CHUNK', 4)  # does not divide 19
  monkeypatch.setattr(parallel, 'cores', lambda: threads)
  source = noise(19)
  arrays = records_lib.to_memory(Images(source))
  assert arrays.source is source and arrays.label.dtype == np.int32
  np.testing.assert_array_equal(arrays.image, source.image)
  np.testing.assert_array_equal(arrays.label, source.label)


def test_large_images_are_decoded_in_small_parts(monkeypatch):
  images = Images(noise(9))
  size = np.prod(images.image_shape)
  for most, sizes in ((4 * size, [4, 4, 1]), (size - 1, [1] * 9)):
    monkeypatch.setattr(records_lib, '_CHUNK_BYTES', int(most))
    chunks = records_lib.decode_all(images)
    assert [len(chunk['label']) for chunk in chunks] == sizes


def test_all_threads_together_read_two_batches_ahead(monkeypatch):
  monkeypatch.setattr(parallel, 'cores', lambda: 8)
  read = []

  class Noted(Images):

    def read(self, row, rng=None):
      read.append(row)
      return super().read(row, rng)

  batches = batches_lib.train_batches(Noted(noise(20)), batch_size=8, seed=0)
  next(batches)
  time.sleep(0.2)  # Threads that read further ahead would go on meanwhile.
  assert 8 <= len(read) <= 24
  batches.close()


def test_sizes_that_differ_are_one_line():
  image, label = noise(5).image[:, :6, :8], noise(5).label
  uneven = Images(_Uneven(image, label))
  uneven.read(2)
  said = 'record 3 has 9 x 6 pixels, the first image 8 x 6: set config.data.i'
  for read in (lambda: uneven.read(3), lambda: records_lib.to_memory(uneven)):
    with pytest.raises(UserError, match=said):
      read()
  fitted = Images(_Uneven(image, label), (4, 4))
  assert records_lib.to_memory(fitted).image.shape == (5, 4, 4, 3)


def test_what_memory_cannot_hold_is_refused(monkeypatch):
  images = Images(noise(5))  # of 18,000 bytes
  memory = {'SC_PAGE_SIZE': 10, 'SC_PHYS_PAGES': 1799}
  monkeypatch.setattr(os, 'sysconf', memory.get)
  with pytest.raises(UserError, match='5 images of 40 x 30 pixels would take'):
    records_lib.to_memory(images)
  memory['SC_PHYS_PAGES'] = 1800
  assert len(records_lib.to_memory(images)) == 5


def test_threads_read_ahead_but_not_all(monkeypatch):
  monkeypatch.setattr(parallel, 'cores', lambda: 3)
  begun = []
  dataset = grain.MapDataset.range(90).map(lambda i: begun.append(i) or i)
  for taken, value in enumerate(parallel.in_threads(dataset)):
    assert value == taken
    assert len(begun) - taken <= 3 * parallel.AHEAD + 4
  assert sorted(begun) == list(range(90))


@pytest.mark.parametrize(
    'batches',
    [
        lambda records: take(2, records, batch_size=8, seed=0),
        lambda records: evaluated(records, batch_size=8),
    ],
)
def test_threads_decode_the_records_of_a_batch(batches, monkeypatch):
  """Evaluation, too, whatever the number of workers."""
  monkeypatch.setattr(parallel, 'cores', lambda: 2)
  records = Images(numbered(16))
  want, read = batches(records), records.read
  together = threading.Barrier(2, timeout=20)  # Times out without threads.
  monkeypatch.setattr(
      records, 'read', lambda *a: (together.wait() and 0) or read(*a)
  )
  _assert_equal(batches(records), want)
  assert not multiprocessing.active_children()


def test_evaluation_starts_no_processes():
  batches = batches_lib.eval_batches(Images(noise(), workers=2), batch_size=2)
  next(batches)
  assert not multiprocessing.active_children()
  batches.close()


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


def test_a_log_has_a_line_a_minute(monkeypatch, capsys):
  """Of 24 items that take 20 seconds each, from the first minute on."""
  now = [0.0]
  monkeypatch.setattr('tqdm.std.time', lambda: now[0])
  for item in parallel.with_bar(range(24), 'check', 24):
    now[0] += 20
    assert item == now[0] / 20 - 1
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 8
  assert lines[0] == 'check: 3 of 24, 20.00s/img, ETA 07:00'
  assert lines[-1] == 'check: 24 of 24, 20.00s/img, ETA 00:00'


def test_work_goes_on_if_the_reader_of_its_log_is_gone(monkeypatch):
  stream = mock.Mock()
  stream.isatty.return_value = False
  stream.write.side_effect = BrokenPipeError
  monkeypatch.setattr(parallel, '_MINUTE', 0.0)
  monkeypatch.setattr('sys.stderr', stream)
  assert [*parallel.with_bar(range(5), 'check', 5)] == [0, 1, 2, 3, 4]
  assert stream.write.called


def test_short_work_says_nothing_in_a_log(capsys):
  assert [*parallel.with_bar(range(5), 'check', 5)] == [0, 1, 2, 3, 4]
  assert capsys.readouterr().err == ''
