"""Damaged, incomplete, foreign and malicious archives; each is one line."""

import os

import cifar10_test
import numpy as np
import pytest

from gswinrmt_jax.data import cifar10_archive


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
  """Makes fifty and twenty images a complete data set."""
  monkeypatch.setattr(
      cifar10_archive, 'IMAGES_PER_CLASS', cifar10_test.PER_CLASS
  )


@pytest.mark.parametrize('share', [0.0, 0.001, 0.3, 0.9999])
def test_truncated_archive(share, tmp_path):
  archive = cifar10_test.binary_archive(tmp_path)
  os.truncate(archive, int(share * archive.stat().st_size))
  assert f'cannot read the archive {archive}' in cifar10_test.refused(
      tmp_path, archive
  )


@pytest.mark.parametrize(
    'make', [cifar10_test.binary_archive, cifar10_test.python_archive]
)
def test_one_flipped_bit_in_a_pixel(make, tmp_path):
  archive = make(tmp_path)
  content = bytearray(archive.read_bytes())
  content[len(content) // 2] ^= 1
  archive.write_bytes(content)
  assert str(archive) in cifar10_test.refused(tmp_path, archive)


def test_other_files_are_no_archive(tmp_path):
  assert 'No such file' in cifar10_test.refused(
      tmp_path, tmp_path / 'absent.tar.gz'
  )
  assert 'directory' in cifar10_test.refused(tmp_path, tmp_path)
  text = tmp_path / 'text'
  text.write_text('hello')
  assert f'cannot read the archive {text}' in cifar10_test.refused(
      tmp_path, text
  )
  other = cifar10_test.write_archive(
      tmp_path / 'other.tar.gz', {'train.bin': b'123'}
  )
  assert 'data_batch_1 is not in it' in cifar10_test.refused(tmp_path, other)


def test_incomplete_archive_is_counted(tmp_path):
  records = dict(cifar10_test.tiny_records())
  images, labels = records['train']
  records['train'] = images, np.where(labels == 3, 4, labels)
  message = cifar10_test.refused(
      tmp_path, cifar10_test.binary_archive(tmp_path, records)
  )
  assert 'train holds [5, 5, 5, 0, 10, 5, 5, 5, 5, 5] images' in message
  records['train'] = images[:-1], labels[:-1]
  assert 'is not complete' in cifar10_test.refused(
      tmp_path, cifar10_test.binary_archive(tmp_path, records)
  )
  records['train'] = images, np.where(labels == 9, 10, labels)
  assert 'is not complete' in cifar10_test.refused(
      tmp_path, cifar10_test.binary_archive(tmp_path, records)
  )


def test_pickle_that_runs_code_is_refused_by_name(tmp_path):
  mark = tmp_path / 'executed'
  attack = b'\x80\x02cposix\nsystem\nU%c%bR.' % (
      len(f'touch {mark}'),
      f'touch {mark}'.encode() + b'\x85',
  )
  archive = cifar10_test.python_archive(tmp_path, data_batch_3=attack)
  assert 'refused to load posix.system' in cifar10_test.refused(
      tmp_path, archive
  )
  assert not mark.exists()
  # A sibling of an allowed name.
  archive = cifar10_test.python_archive(
      tmp_path, test_batch=b'\x80\x02cnumpy\nsave\n.'
  )
  assert 'refused to load numpy.save' in cifar10_test.refused(tmp_path, archive)
  archive = cifar10_test.python_archive(
      tmp_path, test_batch=b'\x80\x02]K\x05a.'
  )
  assert 'not a dict of data and labels' in cifar10_test.refused(
      tmp_path, archive
  )
