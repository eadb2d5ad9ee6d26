"""Random crops of records: a function of seed and position alone."""

import itertools

import folder_data
import numpy as np
import pytest

from gswinrmt_jax.data import cropped, datasets, pictures, pipeline, sources
from gswinrmt_jax.errors import UserError


def _source(count=9):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (count, 30, 40, 3), np.uint8)
  return sources.ArraySource(image, np.arange(count, dtype=np.int32))


def _take(count, records, **settings):
  batches = pipeline.train_batches(records, **settings)
  taken = list(itertools.islice(batches, count))
  batches.close()
  return taken


def _assert_equal(batches, others):
  for batch, other in zip(batches, others, strict=True):
    assert batch.keys() == other.keys()
    for name, array in batch.items():
      np.testing.assert_array_equal(array, other[name], err_msg=name)
      assert array.dtype == other[name].dtype


def test_a_batch_says_what_was_cropped_of_which_record():
  source = _source()
  records = cropped.Cropped(source, (6, 5), pictures.RandomCrop())
  assert len(records) == 9 and records.image_shape == (6, 5, 3)
  (batch,) = _take(1, records, batch_size=9, seed=3)
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
  records = cropped.Cropped(_source(), (6, 5), pictures.RandomCrop())
  # Twelve epochs, every record twice each time: no two boxes are the same.
  batches = _take(12, records, batch_size=9, seed=3, repeats=2)
  boxes = np.concatenate([batch['box'] for batch in batches])
  assert len(np.unique(boxes, axis=0)) > 0.95 * len(boxes)
  other = _take(1, records, batch_size=9, seed=4)
  assert (other[0]['box'] != batches[0]['box']).any(1).all()
  # Position 17 is what it is, in whatever batch.
  (single,) = _take(1, records, batch_size=1, seed=3, start_step=17)
  (pair,) = _take(1, records, batch_size=2, seed=3, start_step=8)
  _assert_equal([single], [{name: pair[name][1:] for name in pair}])


@pytest.mark.parametrize('repeats', [1, 2])
def test_it_starts_at_any_step(repeats):
  records = cropped.Cropped(_source(), (6, 5), pictures.RandomCrop())
  settings = {'batch_size': 4, 'seed': 1, 'repeats': repeats}
  unbroken = _take(7, records, **settings)
  _assert_equal(unbroken[5:], _take(2, records, start_step=5, **settings))


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
      _take(
          5,
          datasets.load(
              'own',
              'train',
              str(root),
              image_size=(6, 5),
              storage='decode',
              workers=workers,
              random_crop=pictures.RandomCrop(),
          ),
          **settings,
      )
      for workers in (0, 2)
  ]
  _assert_equal(*found)
  assert type(found[1][0]['image']) is np.ndarray


def test_storages_and_workers_give_the_same_batches(root):
  settings = {'batch_size': 5, 'seed': 2, 'start_step': 2}
  trained, evaluated = [], []
  for storage, workers in (
      ('memory', 0),
      ('disk', 0),
      ('decode', 0),
      ('decode', 2),
  ):
    records = datasets.load(
        'own',
        'train',
        str(root),
        image_size=(6, 5),
        storage=storage,
        workers=workers,
    )
    trained.append(_take(4, records, **settings))
    if not workers:
      evaluated.append(list(pipeline.eval_batches(records, batch_size=5)))
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
    _take(9, records, batch_size=1, seed=0)
