"""Tests which images are found in folders and tars, and how they are split."""

from collections import Counter
import gzip
import hashlib
import os
import tarfile

import image_files
import pytest

from gswinrmt_jax.data import class_folders, image_paths, pictures
from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data.collection import Collection
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import writer
from gswinrmt_jax.errors import UserError


def _found(root):
  collection = class_folders.find(root)
  return {
      split: [(picture.file_name, picture.label) for picture in pictures]
      for split, pictures in collection.splits.items()
  }


def test_class_folders_are_undivided(tmp_path):
  image_files.write(tmp_path, ('b/2.PNG', 'b/deep/er/1.jpeg', 'a/x.webp'))
  assert _found(tmp_path) == {
      '': [('a/x.webp', 0), ('b/2.PNG', 1), ('b/deep/er/1.jpeg', 1)]
  }


def test_folders_of_splits(tmp_path):
  image_files.write(
      tmp_path, ('train/b/1.jpg', 'train/a/1.jpg', 'validation/b/1.jpg')
  )
  assert _found(tmp_path) == {
      'train': [('train/a/1.jpg', 0), ('train/b/1.jpg', 1)],
      'val': [('validation/b/1.jpg', 1)],
  }


def test_names_of_any_alphabet_by_code_point(tmp_path):
  names = ['Zebra', 'ape', 'Äffchen', 'кот', '猫', 'with space']
  image_files.write(tmp_path, image_files.names(*names, count=1))
  found = class_folders.find(tmp_path).class_names
  assert found == ('Zebra', 'ape', 'with space', 'Äffchen', 'кот', '猫')


def test_a_class_may_be_called_train(tmp_path):
  image_files.write(tmp_path, ('train/1.jpg', 'plane/1.jpg', 'test/1.jpg'))
  assert class_folders.find(tmp_path).class_names == ('plane', 'test', 'train')


def test_what_is_passed_over_is_counted(tmp_path):
  image_files.write(
      tmp_path,
      (
          'train/a/1.jpg',
          'train/a/.hidden.jpg',
          'train/a/notes.TXT',
          'train/a/README',
          'train/b/1.jpg',
          'train/b/.git/1.jpg',
          'train/stray.jpg',
          'train/list.csv',
          'classes.txt',
          '.DS_Store',
          'extra/b/1.jpg',
      ),
  )
  collection = class_folders.find(tmp_path)
  assert sum(map(len, collection.splits.values())) == 2
  assert {k: v for k, v in collection.ignored.items() if v} == {
      'hidden': 3,
      '.txt': 2,
      'without suffix': 1,
      '.jpg': 1,  # outside of the class folders
      '.csv': 1,
      'other folders': 1,
  }


@pytest.mark.parametrize(
    'names, said',
    [
        (
            ['train/a/1.jpg', 'val/c/1.jpg'],
            "train has no class 'c', but another split has",
        ),
        (['val/a/1.jpg', 'test/b/1.jpg'], 'has test/, val/ but no train/'),
        (['train/1.jpg', 'val/2.jpg'], 'has train/, val/ but no train/ with'),
        (
            ['train/a/1.jpg', 'valid/a/1.jpg', 'val/a/1.jpg'],
            'both val/ and valid/|both valid/ and val/',
        ),
        (['1.jpg'], 'has 0 class folders: two or more'),
        (['train/a/1.jpg', 'val/a/1.jpg'], 'has 1 class folder:'),
    ],
)
def test_folders_that_will_not_do(names, said, tmp_path):
  image_files.write(tmp_path, names)
  with pytest.raises(UserError, match=said) as caught:
    class_folders.find(tmp_path)
  assert '\n' not in str(caught.value)


def test_classes_that_differ_between_splits_are_pooled_if_asked(tmp_path):
  image_files.write(tmp_path, ('train/b/1.jpg', 'val/a/1.jpg', 'val/b/1.jpg'))
  made = class_folders.find(tmp_path, pool=True)
  assert made.class_names == ('a', 'b') and list(made.splits) == ['']
  assert [(p.file_name, p.label) for p in made.images] == [
      ('train/b/1.jpg', 1),
      ('val/a/1.jpg', 0),
      ('val/b/1.jpg', 1),
  ]
  (tmp_path / 'val/a').rename(tmp_path / 'train/a')
  assert list(class_folders.find(tmp_path, pool=True).splits) == [
      'train',
      'val',
  ]


def test_links_are_followed_but_not_in_circles(tmp_path):
  image_files.write(tmp_path / 'other', ('1.jpg', '2.jpg'))
  image_files.write(tmp_path / 'set', ('a/1.jpg',))
  (tmp_path / 'set' / 'b').symlink_to(tmp_path / 'other')
  (tmp_path / 'set' / 'a' / 'gone.jpg').symlink_to(tmp_path / 'nowhere')
  (tmp_path / 'set' / 'a' / 'self.jpg').symlink_to('self.jpg')
  # Broken links are listed here; inspection reports them as damaged.
  assert _found(tmp_path / 'set') == {
      '': [
          ('a/1.jpg', 0),
          ('a/gone.jpg', 0),
          ('a/self.jpg', 0),
          ('b/1.jpg', 1),
          ('b/2.jpg', 1),
      ]
  }
  (tmp_path / 'set' / 'a' / 'loop').symlink_to(tmp_path / 'set' / 'a')
  with pytest.raises(UserError, match='a/loop is a link to a folder that'):
    class_folders.find(tmp_path / 'set')
  (tmp_path / 'set' / 'a' / 'loop').unlink()
  (tmp_path / 'set' / 'a' / 'up').symlink_to(tmp_path / 'set')
  with pytest.raises(UserError, match='a/up/a is a link to a folder that'):
    class_folders.find(tmp_path / 'set')


def test_a_name_that_is_not_utf8(tmp_path):
  image_files.write(tmp_path, ('a/1.jpg', 'b/1.jpg'))
  os.rename(tmp_path / 'a/1.jpg', os.fsencode(tmp_path / 'a') + b'/\xff.jpg')
  with pytest.raises(UserError, match='not UTF-8'):
    class_folders.find(tmp_path)


def test_what_is_looked_for_can_be_read():
  assert set(image_paths.SUFFIXES.values()) == set(pictures.FORMATS)


@pytest.mark.parametrize('name', ['birds', 'my_set_2', 'b'])
def test_names_that_will_do(name):
  writer.check_name(name, 'segmentation')


@pytest.mark.parametrize(
    'name, said',
    [
        (None, 'a NAME is needed'),
        ('', 'a NAME is needed'),
        ('Birds', 'lower-case letters'),
        ('2birds', 'lower-case letters'),
        ('my-birds', 'lower-case letters'),
        ('../birds', 'lower-case letters'),
        ('vögel', 'lower-case letters'),
        ('birds\n', 'lower-case letters'),
        ('cifar10', 'is taken'),
        ('digits', 'is taken'),
        ('digit_masks', 'is taken'),
        ('imagenet', 'is taken'),
    ],
)
def test_names_that_will_not(name, said):
  with pytest.raises(UserError, match=said):
    writer.check_name(name, 'segmentation')


def _found_and_divided(root, val=None, test=None, seed=None):
  shares = {'val': val, 'test': test}
  return collections.divide(class_folders.find(root), shares, seed)


def test_class_folders_are_divided(tmp_path):
  image_files.write(tmp_path, image_files.names('a', 'b', count=20))
  made = _found_and_divided(tmp_path)
  assert made.counts('train') == [16, 16]
  assert made.counts('val') == made.counts('test') == [2, 2]
  assert made.source['seed'] == 0
  made = _found_and_divided(tmp_path, val=0.25, test=0, seed=3)
  assert made.counts('train') == [15, 15] and made.counts('val') == [5, 5]
  assert made.source['seed'] == 3 and 'test' not in made.splits


def test_splits_of_ones_own_stay(tmp_path):
  folders = ('train/a', 'train/b', 'val/a')
  image_files.write(tmp_path, image_files.names(*folders))
  made = _found_and_divided(tmp_path)
  assert list(made.splits) == ['train', 'val']
  for option in ('val', 'test', 'seed'):
    said = f'own train/, so --{option} has no effect'
    with pytest.raises(UserError, match=said):
      _found_and_divided(tmp_path, **{option: 0})


def _divided(counts, val, test, seed=0, **how):
  pictures = [
      ImageFile(f'{label}/{i}', label)
      for label, count in enumerate(counts)
      for i in range(count)
  ]
  names = tuple(map(str, range(len(counts))))
  collection = Collection('/x', names, {'': pictures})
  return collections.divide(collection, {'val': val, 'test': test}, seed, **how)


def test_every_class_gives_its_share_rounded():
  made = _divided((20, 15, 4, 5), 0.1, 0.2)
  assert made.counts('test') == [4, 3, 1, 1]  # 4, 3, 0.8, 1
  assert made.counts('val') == [2, 2, 0, 1]  # 2, 1.5, 0.4, 0.5
  assert made.counts('train') == [14, 10, 3, 3]
  together = [p for part in made.splits.values() for p in part]
  assert len(together) == len(set(together)) == 44
  assert made.source['seed'] == 0
  assert made.source['shares'] == {'val': 0.1, 'test': 0.2}


def test_order_is_that_of_the_hashes():
  made = _divided((10, 10), 0.2, 0.1, seed=7)
  ranked = sorted(
      (f'1/{i}' for i in range(10)),
      key=lambda name: hashlib.sha256(f'7:{name}'.encode()).hexdigest(),
  )
  of_one = {
      split: sorted(p.file_name for p in pictures if p.label == 1)
      for split, pictures in made.splits.items()
  }
  assert of_one == {
      'test': ranked[:1],
      'val': sorted(ranked[1:3]),
      'train': sorted(ranked[3:]),
  }


def test_seed_decides():
  first, same = _divided((50,), 0.2, 0.2, 3), _divided((50,), 0.2, 0.2, 3)
  other = _divided((50,), 0.2, 0.2, 4)
  assert first.splits == same.splits
  assert first.splits['test'] != other.splits['test']


def test_no_share_no_split():
  assert list(_divided((9,), 0.2, 0).splits) == ['train', 'val']
  assert list(_divided((9,), 0, 0).splits) == ['train']


@pytest.mark.parametrize(
    'shares', [(0.5, 0.5), (-0.1, 0.2), (1, 0), (float('nan'), 0)]
)
def test_shares_that_will_not_do(shares):
  with pytest.raises(UserError, match=r'^--val=.* and --test=.* below 1$'):
    _divided((9, 9), *shares)


def test_a_class_that_leaves_train_nothing():
  said = r"class '1' has 2 images, .* for train: add some"
  with pytest.raises(UserError, match=f'{said}, or lower --val and --test$'):
    _divided((9, 2), 0.3, 0.3)
  with pytest.raises(UserError, match=f'{said}$'):
    _divided((9, 2), 0.3, 0.3, options=False)


def test_a_split_that_gets_nothing():
  assert _divided((9, 5), 0.1, 0.1).counts('val') == [1, 1]
  assert _divided((5, 4), 0.1, 0.1).counts('val') == [1, 0]
  said = r'^val would get nothing, as 0\.1 of every class .*: add some'
  with pytest.raises(UserError, match=f'{said}, or raise --val, or set it to'):
    _divided((4, 4), 0.1, 0.2)
  with pytest.raises(UserError, match=f'{said}, or divide them yourself'):
    _divided((4, 4), 0.1, 0.2, options=False)
  with pytest.raises(UserError, match=r'^test would get .* raise --test'):
    _divided((4, 4), 0.2, 0.1)


def _made(names=('a', 'b'), train=(0, 1), **splits):
  parts = {'train': train, **splits}
  return Collection(
      '/x',
      names,
      {
          split: [
              ImageFile(f'{split}/{i}', label) for i, label in enumerate(part)
          ]
          for split, part in parts.items()
      },
  )


def test_counts_are_by_class():
  made = _made(('a', 'b', 'c'), (2, 0, 2, 2), val=(1,))
  assert made.counts('train') == [1, 0, 3]
  assert made.counts('val') == [0, 1, 0]


def test_pictures_in_files_and_in_tars(tmp_path):
  (tmp_path / 'a.jpg').write_bytes(b'abc')
  (tmp_path / 'b.tar').write_bytes(b'0123456789')
  file = ImageFile('a.jpg', 0)
  member = ImageFile('b.tar/c.jpg', 0, 'b.tar', 3, 4)
  assert image_paths.read(tmp_path, file) == b'abc'
  assert image_paths.read(tmp_path, member) == b'3456'


@pytest.mark.parametrize(
    'arguments, said',
    [
        ({'names': (' a', 'b')}, "' a' has blanks"),
        ({'names': ('a', 'b\nc')}, 'line break'),
        ({'names': ('a', 'b\u2028c')}, 'line break'),
        ({'train': (0, 0)}, "class 'b' has no image to train with"),
        ({'val': ()}, 'no image is left for val'),
    ],
)
def test_what_cannot_be_a_data_set(arguments, said):
  with pytest.raises(UserError, match=said):
    collections.check(_made(**arguments))


def test_what_can():
  collections.check(_made(('à la carte', '猫'), (1, 0), val=(1,)))


_CONTENTS = {
    './b.JPEG': image_files.encoded(1),
    'deep/a.png': image_files.encoded(2, 'PNG'),
    'list.txt': b'x',
    '._b.JPEG': b'x',
}


def test_pictures_are_where_the_tar_has_them(tmp_path):
  (tmp_path / 'set.tar').write_bytes(image_files.tar(_CONTENTS))
  ignored = Counter()
  found = list(image_paths.find(tmp_path, 'set.tar', ignored))
  assert [p.file_name for p in found] == [
      'set.tar/b.JPEG',
      'set.tar/deep/a.png',
  ]
  contents = [image_paths.read(tmp_path, picture) for picture in found]
  assert contents == [image_files.encoded(1), image_files.encoded(2, 'PNG')]
  assert ignored == {'.txt': 1, 'hidden': 1}


def _tar_of_tars():
  return image_files.tar(
      {
          'n2.tar': image_files.tar({'n2_1.JPEG': image_files.encoded(1)}),
          'README': b'x',
          'n1.tar': image_files.tar(
              {
                  'n1_1.JPEG': image_files.encoded(2),
                  'n1_2.JPEG': image_files.encoded(3),
              }
          ),
      }
  )


def test_tars_in_a_tar(tmp_path):
  (tmp_path / 'all.tar').write_bytes(_tar_of_tars())
  ignored = Counter()
  found = list(image_paths.find(tmp_path, 'all.tar', ignored))
  assert {p.file_name: image_paths.read(tmp_path, p) for p in found} == {
      'all.tar/n2.tar/n2_1.JPEG': image_files.encoded(1),
      'all.tar/n1.tar/n1_1.JPEG': image_files.encoded(2),
      'all.tar/n1.tar/n1_2.JPEG': image_files.encoded(3),
  }
  assert ignored == {'without suffix': 1}


def _listed(path):
  return list(image_paths.find(path.parent, path.name, Counter()))


@pytest.mark.parametrize('left', [512 * 5, 512 * 7, 512 * 8 + 100, -10240])
def test_truncated(left, tmp_path):
  (tmp_path / 'all.tar').write_bytes(_tar_of_tars()[:left])
  with pytest.raises(UserError, match='damaged'):
    _listed(tmp_path / 'all.tar')


def test_damaged_header_in_the_middle(tmp_path):
  content = bytearray(image_files.tar(_CONTENTS))
  at = content.index(b'deep/a.png')
  content[at] ^= 1
  (tmp_path / 'set.tar').write_bytes(content)
  with pytest.raises(UserError, match='is damaged'):
    list(image_paths.find(tmp_path, 'set.tar', Counter()))


def test_compressed_or_none(tmp_path):
  (tmp_path / 'all.tar').write_bytes(gzip.compress(_tar_of_tars()))
  with pytest.raises(UserError, match=r'all\.tar is damaged, or not an unc'):
    _listed(tmp_path / 'all.tar')
  (tmp_path / 'all.tar').write_bytes(image_files.tar({'n1.tar': b'no tar'}))
  with pytest.raises(UserError, match=r'n1\.tar is damaged, or not an unc'):
    _listed(tmp_path / 'all.tar')


@pytest.mark.parametrize('name', ['a\udcff.JPEG', 'b\udcff/c.txt'])
def test_names_that_are_not_utf8(name, tmp_path):
  content = image_files.tar({'good.JPEG': b'x', name: b'x'})
  (tmp_path / 'set.tar').write_bytes(content)
  with pytest.raises(UserError, match=r"set\.tar has a name .*'.\\udcff"):
    list(image_paths.find(tmp_path, 'set.tar', Counter()))
  (tmp_path / 'all.tar').write_bytes(image_files.tar({'n1.tar': content}))
  with pytest.raises(UserError, match=r'n1\.tar has a name that is not UTF-8'):
    _listed(tmp_path / 'all.tar')


def _header(name, size, kind=tarfile.REGTYPE):
  member = tarfile.TarInfo(name)
  member.size, member.type = size, kind
  return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize('inner', [False, True])
@pytest.mark.parametrize(
    ('header', 'said'),
    [
        # A negative size would send the reader backwards.
        (_header('a.jpg', -1024), r".*\('a.jpg' has -1024 bytes in it"),
        (_header('a', -1024, tarfile.DIRTYPE), 'damaged'),
        (
            _header('a.jpg', 2**62),
            r".*\('a.jpg' has 4611686018427387904",
        ),
        (_header('a.jpg', 2**80), 'damaged'),
        (_header('././@LongLink', 2**62, tarfile.GNUTYPE_LONGNAME), 'damaged'),
        (_header('././@LongLink', -512, tarfile.GNUTYPE_LONGNAME), 'damaged'),
        (_header('pax', -512, tarfile.XHDTYPE), 'damaged'),
        (
            _header('a.jpg', 9, tarfile.GNUTYPE_SPARSE),
            "'a.jpg' is sparse",
        ),
        (
            _header('pax', 512, tarfile.XHDTYPE)
            + b'22 GNU.sparse.major=x\n'.ljust(512, b'\0'),
            'damaged',
        ),
    ],
)
def test_headers_that_mislead(header, said, inner, tmp_path):
  whole = image_files.tar({'b.jpg': bytes(512)})
  content = whole[:1024] + header + b'x' * 512 + whole
  if inner:
    content = image_files.tar({'n1.tar': content})
  (tmp_path / 'all.tar').write_bytes(content)
  with pytest.raises(UserError, match=said) as caught:
    _listed(tmp_path / 'all.tar')
  assert '\n' not in str(caught.value)
  assert str(tmp_path / 'all.tar') in str(caught.value)
