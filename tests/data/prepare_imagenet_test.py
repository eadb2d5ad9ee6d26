"""Tests preparing ImageNet, cut to four classes, from each of its forms."""

from collections import Counter

import image_files
import pytest

from gswinrmt_jax.data import image_paths, imagenet
from gswinrmt_jax.data.prepare import imagenet as finder
from gswinrmt_jax.errors import UserError

_WNIDS = imagenet.wnids()[:4]
_TRAIN = {wnid: [f'{wnid}_{i}.JPEG' for i in (18, 7)] for wnid in _WNIDS}
# Two images of the third class, none of the second.
_VAL = dict(
    zip(
        (f'ILSVRC2012_val_{i:08d}' for i in (1, 2, 3, 4)),
        (_WNIDS[i] for i in (2, 0, 2, 3)),
        strict=True,
    )
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
  names = imagenet.classes()[:4]
  monkeypatch.setattr(imagenet, 'wnids', lambda: _WNIDS)
  monkeypatch.setattr(imagenet, 'classes', lambda: names)
  monkeypatch.setattr(finder, 'OFFICIAL', {'train': 8, 'val': 4})
  monkeypatch.setattr(finder, '_val_wnids', lambda: [*_VAL.values()])


def _bytes(name):
  """Returns an encoded image that differs for each name."""
  return image_files.encoded(int(name.partition('.')[0][-4:].strip('_'), 36))


def _train_folders(root):
  for wnid, names in _TRAIN.items():
    (root / 'train' / wnid).mkdir(parents=True)
    for name in names:
      (root / 'train' / wnid / name).write_bytes(_bytes(name))


def _train_tars(root):
  (root / 'train').mkdir()
  for wnid, names in _TRAIN.items():
    content = image_files.tar({name: _bytes(name) for name in names})
    (root / 'train' / f'{wnid}.tar').write_bytes(content)


def _train_tar(root):
  content = image_files.tar(
      {
          f'{wnid}.tar': image_files.tar({name: _bytes(name) for name in names})
          for wnid, names in reversed(_TRAIN.items())
      }
  )
  (root / 'ILSVRC2012_img_train.tar').write_bytes(content)


def _val_folders(root):
  for wnid in _WNIDS:
    (root / 'val' / wnid).mkdir(parents=True)
  for name, wnid in _VAL.items():
    path = root / 'val' / wnid / f'{name}.JPEG'
    path.write_bytes(_bytes(name))


def _val_flat(root):
  (root / 'val').mkdir()
  for name in _VAL:
    (root / 'val' / f'{name}.JPEG').write_bytes(_bytes(name))


def _val_tar(root):
  content = image_files.tar({f'{name}.JPEG': _bytes(name) for name in _VAL})
  (root / 'ILSVRC2012_img_val.tar').write_bytes(content)


@pytest.mark.parametrize(
    ('train', 'val'),
    [
        (_train_folders, _val_folders),
        (_train_tars, _val_flat),
        (_train_tar, _val_tar),
    ],
)
def test_every_form_gives_the_same(train, val, tmp_path):
  train(tmp_path)
  val(tmp_path)
  made = finder.find(tmp_path)
  assert made.class_names == imagenet.classes() and not made.notes
  contents = {
      split: {
          (picture.label, image_paths.read(tmp_path, picture))
          for picture in pictures
      }
      for split, pictures in made.splits.items()
  }
  assert contents == {
      'train': {
          (label, _bytes(name))
          for label, wnid in enumerate(_WNIDS)
          for name in _TRAIN[wnid]
      },
      'val': {
          (_WNIDS.index(wnid), _bytes(name)) for name, wnid in _VAL.items()
      },
  }
  assert len({p.file_name for p in made.splits['train']}) == 8


def test_classes_of_the_validation_images_come_with_tfds(monkeypatch):
  monkeypatch.undo()
  wnids = finder._val_wnids()
  assert wnids[:3] == ['n01751748', 'n09193705', 'n02105855']
  assert Counter(wnids) == dict.fromkeys(imagenet.wnids(), 50)


def test_other_numbers_are_said(tmp_path):
  _train_folders(tmp_path)
  _val_flat(tmp_path)
  (tmp_path / 'train' / _WNIDS[1] / _TRAIN[_WNIDS[1]][0]).unlink()
  assert finder.find(tmp_path).notes == [
      'train has 7 images, the release has 8'
  ]


def _refused(root):
  with pytest.raises(UserError) as caught:
    finder.find(root)
  assert '\n' not in str(caught.value)
  return str(caught.value)


def test_what_is_missing_or_too_much(tmp_path):
  assert 'neither ILSVRC2012_img_train.tar nor train/' in _refused(tmp_path)
  _train_folders(tmp_path)
  assert 'neither ILSVRC2012_img_val.tar nor val/' in _refused(tmp_path)
  _val_flat(tmp_path)
  for name in ('ILSVRC2012_val_00000005.JPEG', 'x.JPEG'):
    path = tmp_path / 'val' / name
    path.write_bytes(_bytes('1.JPEG'))
    assert f'val/{name} is not a validation image' in _refused(tmp_path)
    path.unlink()
  (tmp_path / 'train' / 'n99999999').mkdir()
  (tmp_path / 'train' / 'notes').mkdir()
  assert finder.find(tmp_path).ignored['other folders'] == 2
  for name in _TRAIN[_WNIDS[2]]:
    (tmp_path / 'train' / _WNIDS[2] / name).unlink()
  said = _refused(tmp_path)
  assert '1 of 4 classes have no images' in said
  assert said.endswith(f'the first {_WNIDS[2]}')


def test_wanted_classes_among_others(tmp_path):
  image_files.write(
      tmp_path / 'in', image_files.names('n00000003', 'n00000001', 'notes')
  )
  image_files.write(tmp_path / 'in', ['.hidden', 'list.csv', 'README'])
  content = image_files.tar({'x.JPEG': image_files.encoded(1)})
  (tmp_path / 'in' / 'n00000002.tar').write_bytes(content)
  (tmp_path / 'in' / 'n00000004.tar').write_bytes(b'is not looked at')
  (tmp_path / 'in' / 'n00000005').mkdir()
  ignored = Counter()
  found = finder.find_classes(
      tmp_path, 'in', {'n00000002': 0, 'n00000003': 1}, ignored
  )
  assert [(p.file_name, p.label) for p in found] == [
      ('in/n00000002.tar/x.JPEG', 0),
      ('in/n00000003/0.jpg', 1),
      ('in/n00000003/1.jpg', 1),
      ('in/n00000003/2.jpg', 1),
  ]
  assert {k: v for k, v in ignored.items() if v} == {
      'hidden': 1,
      'other folders': 4,
      '.csv': 1,
      'without suffix': 1,
  }


def _find(root, below):
  labels = {'n00000001': 0, 'n00000002': 1}
  return finder.find_classes(root, below, labels, Counter())


def test_a_class_that_is_there_twice(tmp_path):
  content = image_files.tar({'x.JPEG': image_files.encoded(1)})
  image_files.write(tmp_path, image_files.names('in/n00000001', 'in/n00000002'))
  assert len(_find(tmp_path, 'in')) == 6
  (tmp_path / 'in' / 'n00000002.tar').write_bytes(content)
  with pytest.raises(UserError, match='the class n00000002 twice, as a fold'):
    _find(tmp_path, 'in')
