"""Tests label maps on disk: round trip, checksums, and refused mismatches."""

import hashlib
import json
import shutil

import folder_data
import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.data import datasets, records, token_labels
from gswinrmt_jax.errors import UserError

COUNT, S, T, M = 8, 3, 2, 2


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('own')
  folder_data.write(
      root,
      {
          'train': folder_data.examples(COUNT),
          'val': folder_data.examples(COUNT, seed=1),
      },
  )
  return root


def _maps(count=COUNT):
  """Yields int64 classes and float32 probabilities, as teachers do."""
  rng = np.random.default_rng(0)
  for _ in range(count):
    classes = np.argsort(rng.random((S, T, 3)), -1)[..., :M]
    yield classes, rng.dirichlet(np.ones(3), (S, T))[..., :M].astype(np.float32)


def _write(folder, maps, root):
  token_labels.write(
      folder, maps, name='own', split='train', data_dir=str(root)
  )


@pytest.fixture(scope='module')
def written(root):
  folder = root / 'maps'
  _write(folder, _maps(), root)
  return folder


def _open(folder, root, split='train'):
  return token_labels.open_maps(
      folder, name='own', split=split, data_dir=str(root)
  )


def test_there_and_back(written, root):
  maps = _open(written, root)
  assert isinstance(maps.index, np.memmap)
  assert maps.index.dtype == np.uint16 and maps.score.dtype == np.float16
  want = list(_maps())
  batch = maps.gather(np.array([5, 0, 5]))
  for place, row in enumerate((5, 0, 5)):
    np.testing.assert_array_equal(batch['map_index'][place], want[row][0])
    np.testing.assert_allclose(
        batch['map_score'][place], want[row][1], rtol=1e-3, atol=1e-6
    )
  assert not list(root.glob('.maps*'))


def test_the_description_is_the_documented_one(written, root):
  """The order's checksum can be computed from the file names alone."""
  meta = json.loads((written / 'meta.json').read_text())
  source = datasets.open_source('own', 'train', str(root))
  digest = hashlib.sha256()
  for row in range(COUNT):
    name = source.name(row).partition('(')[2].rstrip(')')
    assert name.endswith('.jpg')
    digest.update(f'{row}\t{name}\n'.encode())
  assert meta == {
      'version': 1,
      'name': 'own',
      'split': 'train',
      'records': COUNT,
      'classes': 3,
      'class_names': hashlib.sha256(b'ant\nbee\ncat\n').hexdigest(),
      'order': digest.hexdigest(),
      'checksum': _checksum(written),
  }


def _checksum(folder):
  """Hashes the bytes of each record, classes before scores."""
  index, score = (
      np.load(folder / f'{name}.npy') for name in ('index', 'score')
  )
  assert index.dtype == '<u2' and score.dtype == '<f2'
  parts = zip(index, score, strict=True)
  return hashlib.sha256(
      b''.join(array.tobytes() for pair in parts for array in pair)
  ).hexdigest()


def test_the_checksum_knows_order_place_and_count():
  def checksum(image):
    label = np.zeros(len(image), np.int32)  # does not reveal the order
    return records.Arrays(image, label).order_checksum()

  image = np.arange(2500, dtype='<u4').view(np.uint8).reshape(-1, 1, 1, 4)
  image = image[..., :3]
  seen = {checksum(image), checksum(image[::-1]), checksum(image[:-1])}
  assert len(seen) == 3
  digest = hashlib.sha256()
  for i in range(1000):
    row = int(2.5 * i)
    pixels = bytes([row % 256, row // 256, 0])
    key = hashlib.sha256(pixels).hexdigest()
    digest.update(f'{row}\t{key}\n'.encode())
  assert checksum(image) == digest.hexdigest()


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('version', 2),
        ('name', 'other'),
        ('split', 'val'),
        ('records', 9),
        ('classes', 4),
        ('class_names', '0'),
        ('order', '0'),
    ],
)
def test_maps_of_something_else_are_refused(
    field, value, written, root, tmp_path
):
  folder = shutil.copytree(written, tmp_path / 'maps')
  meta = json.loads((folder / 'meta.json').read_text())
  (folder / 'meta.json').write_text(json.dumps(meta | {field: value}))
  with pytest.raises(UserError) as caught:
    _open(folder, root)
  message = str(caught.value)
  assert f'{field} is {value!r} there and ' in message and '\n' not in message


def test_maps_of_class_folders_have_their_name(tmp_path, monkeypatch):
  """The teacher may name the path otherwise than the run, which moves it."""
  for split in ('train', 'val'):
    for name in ('ant', 'bee', 'cat'):
      folder = tmp_path / 'own' / split / name
      folder.mkdir(parents=True)
      PIL.Image.new('RGB', (8, 8)).save(folder / 'a.png')
  monkeypatch.chdir(tmp_path)
  how = {'split': 'train', 'data_dir': ''}
  token_labels.write(tmp_path / 'maps', _maps(3), name='./own', **how)
  for name in (str(tmp_path / 'own'), 'own'):
    token_labels.open_maps(tmp_path / 'maps', name=name, **how)
  (tmp_path / 'own').rename(tmp_path / 'other')
  with pytest.raises(UserError, match="name is 'own' there and 'other' here"):
    token_labels.open_maps(tmp_path / 'maps', name='other', **how)


@pytest.mark.parametrize('file', ['meta.json', 'index.npy', 'score.npy'])
@pytest.mark.parametrize('content', [None, b'', b'nothing'])
def test_a_missing_or_damaged_file(file, content, written, root, tmp_path):
  folder = shutil.copytree(written, tmp_path / 'maps')
  (folder / file).unlink()
  if content is not None:
    (folder / file).write_bytes(content)
  with pytest.raises(UserError, match='has no label maps'):
    _open(folder, root)


@pytest.mark.parametrize(
    'array', [np.zeros((8, 3, 2, 2), np.int32), np.zeros((7, 3, 2, 2), 'u2')]
)
def test_other_arrays(array, written, root, tmp_path):
  folder = shutil.copytree(written, tmp_path / 'maps')
  np.save(folder / 'index.npy', array)
  with pytest.raises(UserError, match=r'is damaged: index\.npy is'):
    _open(folder, root)


def _changed(row, **changes):
  for index, (classes, score) in enumerate(_maps()):
    if index == row:
      classes = changes.get('classes', classes)
      score = changes.get('score', score)
    yield classes, score


@pytest.mark.parametrize(
    ('maps', 'said'),
    [
        (_maps(7), 'there are 7 label maps for 8 records'),
        (_maps(9), 'there are 9 label maps for 8 records'),
        (
            _changed(3, classes=np.full((S, T, M), 3)),
            'record 3 has classes outside of 0 to 2',
        ),
        (
            _changed(3, classes=np.full((S, T, M), -1)),
            'record 3 has classes outside',
        ),
        (
            _changed(0, score=np.full((S, T, M), 0.6)),
            'record 0 has scores that are not probabilities',
        ),
        (_changed(0, score=np.full((S, T, M), np.nan)), 'not probabilities'),
        (_changed(0, score=-np.ones((S, T, M))), 'not probabilities'),
        (_changed(0, classes=np.zeros((S, T))), r'not \[s t m\] twice'),
        (
            _changed(0, classes=np.zeros((0, T, M)), score=np.zeros((0, T, M))),
            r'not \[s t m\] twice',
        ),
        (
            _changed(0, classes=np.full((S, T, M), 0.5)),
            'record 0 has classes that are float64, not whole numbers',
        ),
        (
            _changed(2, classes=np.zeros((1, 1, M)), score=np.zeros((1, 1, M))),
            r'record 2 has shapes \(1, 1, 2\) and .* as the first record',
        ),
    ],
)
def test_maps_that_are_none_leave_nothing(maps, said, root, tmp_path):
  folder = tmp_path / 'maps'
  with pytest.raises(UserError, match=said):
    _write(folder, maps, root)
  assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(written, root):
  with pytest.raises(UserError, match='is there already'):
    _write(written, _maps(), root)


def test_maps_without_a_checksum_are_refused(written, root, tmp_path):
  folder = shutil.copytree(written, tmp_path / 'maps')
  meta = json.loads((folder / 'meta.json').read_text())
  del meta['checksum']
  (folder / 'meta.json').write_text(json.dumps(meta))
  with pytest.raises(UserError, match=r'meta\.json has no checksum'):
    _open(folder, root)
