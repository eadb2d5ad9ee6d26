"""Tests finding image files in tars, whole and damaged."""

from collections import Counter
import gzip
import tarfile

import image_files
import PIL.Image
import pytest

from gswinrmt_jax.data import image_paths, pictures
from gswinrmt_jax.errors import UserError

_CONTENTS = {
    './b.JPEG': image_files.encoded(1),
    'deep/a.png': image_files.encoded(2, 'PNG'),
    'list.txt': b'x',
    '._b.JPEG': b'x',
}


def test_what_is_looked_for_can_be_read():
  known = PIL.Image.registered_extensions()
  assert {known[name] for name in image_paths.SUFFIXES} == {*pictures.FORMATS}


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


@pytest.mark.parametrize('kind', [tarfile.GNUTYPE_SPARSE, tarfile.LNKTYPE])
def test_a_member_without_its_bytes_is_refused(kind, tmp_path):
  member = tarfile.TarInfo('a.jpg')
  member.type = kind
  content = member.tobuf(tarfile.GNU_FORMAT) + image_files.tar(_CONTENTS)
  (tmp_path / 'all.tar').write_bytes(content)
  with pytest.raises(UserError, match=r"'a\.jpg' is sparse or a hard link"):
    _listed(tmp_path / 'all.tar')
