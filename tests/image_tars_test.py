from collections import Counter
import gzip

import image_files
import pytest

from gswinrmt_jax.data import collection, image_tars
from gswinrmt_jax.errors import UserError

_CONTENTS = {
    './b.JPEG': image_files.encoded(1),
    'deep/a.png': image_files.encoded(2, 'PNG'),
    'list.txt': b'x',
    '._b.JPEG': b'x',
}


def test_pictures_are_where_the_tar_has_them(tmp_path):
  (tmp_path / 'set.tar').write_bytes(image_files.tar(_CONTENTS))
  ignored = Counter()
  found = list(image_tars.pictures(tmp_path, 'set.tar', ignored))
  assert [p.file_name for p in found] == [
      'set.tar/b.JPEG',
      'set.tar/deep/a.png',
  ]
  contents = [collection.read(tmp_path, picture) for picture in found]
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
  found = dict(image_tars.pictures_of_tars(tmp_path, 'all.tar', ignored))
  assert {
      name: [(p.file_name, collection.read(tmp_path, p)) for p in pictures]
      for name, pictures in found.items()
  } == {
      'n2': [('all.tar/n2.tar/n2_1.JPEG', image_files.encoded(1))],
      'n1': [
          ('all.tar/n1.tar/n1_1.JPEG', image_files.encoded(2)),
          ('all.tar/n1.tar/n1_2.JPEG', image_files.encoded(3)),
      ],
  }
  assert ignored == {'without suffix': 1}


def _listed(path):
  return list(image_tars.pictures_of_tars(path.parent, path.name, Counter()))


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
  with pytest.raises(UserError, match='truncated or damaged'):
    list(image_tars.pictures(tmp_path, 'set.tar', Counter()))


def test_compressed_or_none(tmp_path):
  (tmp_path / 'all.tar').write_bytes(gzip.compress(_tar_of_tars()))
  with pytest.raises(UserError, match=r'all\.tar is no uncompressed tar'):
    _listed(tmp_path / 'all.tar')
  (tmp_path / 'all.tar').write_bytes(image_files.tar({'n1.tar': b'no tar'}))
  with pytest.raises(UserError, match=r'n1\.tar is no uncompressed tar'):
    _listed(tmp_path / 'all.tar')


@pytest.mark.parametrize('name', ['a\udcff.JPEG', 'b\udcff/c.txt'])
def test_names_that_are_not_utf8(name, tmp_path):
  content = image_files.tar({'good.JPEG': b'x', name: b'x'})
  (tmp_path / 'set.tar').write_bytes(content)
  with pytest.raises(UserError, match=r"set\.tar has a name .*'.\\udcff"):
    list(image_tars.pictures(tmp_path, 'set.tar', Counter()))
  (tmp_path / 'all.tar').write_bytes(image_files.tar({'n1.tar': content}))
  with pytest.raises(UserError, match=r'n1\.tar has a name that is not UTF-8'):
    _listed(tmp_path / 'all.tar')
