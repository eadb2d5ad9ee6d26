"""Tests preparing CIFAR-10 from archives and downloads, whole and damaged."""

import functools
import hashlib
import http.server
import json
import os
import threading

import cifar10_archives
from cifar10_archives import binary_archive, python_archive, TINY, tiny_records
import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import cifar

from gswinrmt_jax.data import datasets, prepared
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.errors import UserError


def prepare(path):
  cifar10.prepare(str(path / 'tfds'), str(binary_archive(path)))
  return path / 'tfds' / 'cifar10' / '3.0.2'


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
  """Makes 50 train and 20 test images a complete data set."""
  monkeypatch.setattr(cifar10, 'IMAGES_PER_CLASS', cifar10_archives.PER_CLASS)


@pytest.mark.parametrize('make', [binary_archive, python_archive])
def test_stock_tfds_reads_what_was_prepared(make, tmp_path, capfd):
  root = tmp_path / 'new' / 'tfds'
  final = cifar10.prepare(str(root), str(make(tmp_path)))
  out, err = capfd.readouterr()
  assert final == root / 'cifar10' / '3.0.2' and final.is_dir()
  assert os.listdir(root) == ['cifar10'] and not err
  assert len(out.splitlines()) == 2
  for split, (images, labels) in tiny_records().items():
    source = tfds.data_source('cifar10', data_dir=root, split=split)
    assert len(source) == TINY[split]
    seen = set()
    for record in source:
      name, index = record['id'].decode().split('_')
      assert name == split and len(index) == 5
      np.testing.assert_array_equal(record['image'], images[int(index)])
      assert record['label'] == labels[int(index)]
      seen.add(index)
    assert len(seen) == TINY[split]
  names = tfds.builder('cifar10', data_dir=root).info.features['label'].names
  assert tuple(names) == datasets.info('cifar10').class_names


def test_what_is_there_is_written_again_if_asked(tmp_path, capsys):
  root, archive = str(tmp_path / 'tfds'), str(binary_archive(tmp_path))
  final = cifar10.prepare(root, archive)
  os.chmod(root, 0o555)  # What is there need not be writable.
  cifar10.prepare(root, str(python_archive(tmp_path)))
  assert capsys.readouterr().out.endswith('nothing done\n')
  os.chmod(root, 0o755)
  (final / 'mark').touch()
  assert cifar10.prepare(root, archive, replace=True) == final
  assert not (final / 'mark').exists()
  assert os.listdir(final.parent) == ['3.0.2']


def refused(tmp_path, archive):
  """Returns the error of `prepare`; checks that no file is left."""
  root = tmp_path / 'tfds'
  with pytest.raises(UserError) as caught:
    cifar10.prepare(str(root), archive and str(archive))
  assert not root.exists() or os.listdir(root) == []
  message = str(caught.value)
  assert '\n' not in message
  return message


def test_data_set_that_only_tensorflow_reads_is_named(tmp_path):
  final = prepare(tmp_path)
  path = final / 'dataset_info.json'
  description = json.loads(path.read_text())
  description['fileFormat'] = 'tfrecord'
  path.write_text(json.dumps(description))
  for shard in final.glob('*.array_record-*'):
    shard.rename(str(shard).replace('array_record', 'tfrecord'))
  with pytest.raises(UserError, match='tfrecord files, which only TensorFlow'):
    prepared.open_newest('cifar10', str(tmp_path / 'tfds'))


def test_offline_says_what_to_do(monkeypatch, tmp_path):
  def unreachable(url, **kwargs):
    raise requests.ConnectionError('three\nlines\nlong')

  monkeypatch.setattr(requests, 'get', unreachable)
  message = refused(tmp_path, None)
  assert '(ConnectionError)' in message
  assert 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz' in message
  assert '`gswinrmt prepare cifar10 --archive FILE`' in message
  assert '--config.data.dir' in message and 'TFDS_DATA_DIR' in message


@pytest.fixture
def served(monkeypatch, tmp_path):
  """Serves `tmp_path`; the official builder's URL points to it."""
  handler = functools.partial(
      http.server.SimpleHTTPRequestHandler, directory=str(tmp_path)
  )
  monkeypatch.setattr(handler.func, 'log_message', lambda *_: None)
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
  thread = threading.Thread(target=server.serve_forever, args=(0.02,))
  thread.start()
  name = 'cifar-10-binary.tar.gz'
  url = f'http://127.0.0.1:{server.server_port}/{name}'
  info = cifar.Cifar10._cifar_info.fget(cifar.Cifar10)._replace(url=url)
  monkeypatch.setattr(cifar.Cifar10, '_cifar_info', info)
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')

  def register(checksum, size):
    known = {url: checksums.UrlInfo(tfds.core.units.Size(size), checksum, name)}
    monkeypatch.setattr(checksums, 'get_all_url_infos', lambda: dict(known))

  yield register
  server.shutdown()
  thread.join()
  server.server_close()


def test_download_is_verified_and_leaves_only_the_data_set(served, tmp_path):
  content = binary_archive(tmp_path).read_bytes()
  served(hashlib.sha256(content).hexdigest(), len(content))
  cifar10.prepare(str(tmp_path / 'tfds'))
  assert os.listdir(tmp_path / 'tfds') == ['cifar10']
  assert prepared.open_newest('cifar10', str(tmp_path / 'tfds'))


def test_download_with_another_checksum_is_refused(served, tmp_path):
  content = binary_archive(tmp_path).read_bytes()
  served('0' * 64, len(content))
  assert 'wrong checksum' in refused(tmp_path, None)


def test_download_that_the_server_lacks(served, tmp_path):
  assert '(HTTP 404)' in refused(tmp_path, None)


@pytest.mark.parametrize('share', [0.0, 0.001, 0.3, 0.9999])
def test_truncated_archive(share, tmp_path):
  archive = binary_archive(tmp_path)
  os.truncate(archive, int(share * archive.stat().st_size))
  assert f'cannot read the archive {archive}' in refused(tmp_path, archive)


@pytest.mark.parametrize('make', [binary_archive, python_archive])
def test_one_flipped_bit_in_a_pixel(make, tmp_path):
  archive = make(tmp_path)
  content = bytearray(archive.read_bytes())
  content[len(content) // 2] ^= 1
  archive.write_bytes(content)
  assert str(archive) in refused(tmp_path, archive)


def test_other_files_are_no_archive(tmp_path):
  assert 'No such file' in refused(tmp_path, tmp_path / 'absent.tar.gz')
  assert 'directory' in refused(tmp_path, tmp_path)
  text = tmp_path / 'text'
  text.write_text('hello')
  assert f'cannot read the archive {text}' in refused(tmp_path, text)
  other = cifar10_archives.write_archive(
      tmp_path / 'other.tar.gz', {'train.bin': b'123'}
  )
  assert 'data_batch_1 is not in it' in refused(tmp_path, other)


def test_incomplete_archive_is_counted(tmp_path):
  records = dict(tiny_records())
  images, labels = records['train']
  records['train'] = images, np.where(labels == 3, 4, labels)
  message = refused(tmp_path, binary_archive(tmp_path, records))
  assert 'train have [5, 5, 5, 0, 10, 5, 5, 5, 5, 5] images' in message
  records['train'] = images, np.where(labels == 9, 10, labels)
  assert 'is not complete' in refused(
      tmp_path, binary_archive(tmp_path, records)
  )


def test_pickle_that_runs_code_is_refused_by_name(tmp_path):
  mark = tmp_path / 'executed'
  attack = b'\x80\x02cposix\nsystem\nU%c%bR.' % (
      len(f'touch {mark}'),
      f'touch {mark}'.encode() + b'\x85',
  )
  archive = python_archive(tmp_path, data_batch_3=attack)
  assert 'refused to load posix.system' in refused(tmp_path, archive)
  assert not mark.exists()
  # Another name from a module with allowed names.
  archive = python_archive(tmp_path, test_batch=b'\x80\x02cnumpy\nsave\n.')
  assert 'refused to load numpy.save' in refused(tmp_path, archive)
  archive = python_archive(tmp_path, test_batch=b'\x80\x02]K\x05a.')
  assert 'not a dict of data and labels' in refused(tmp_path, archive)
