import collections
import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import struct
import tarfile
import threading
import time

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.image_classification import cifar

from gswinrmt_jax.data import cifar10, cifar10_archive
from gswinrmt_jax.errors import UserError

PER_CLASS = {'train': 5, 'test': 2}
TINY = {'train': 50, 'test': 20}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
  """Makes fifty and twenty images a complete data set."""
  monkeypatch.setattr(cifar10_archive, 'IMAGES_PER_CLASS', PER_CLASS)


@functools.cache
def tiny_records():
  """Returns {split: (uint8 [n 32 32 3], labels [n])}, classes interleaved."""
  rng = np.random.default_rng(5)
  return {
      split: (
          rng.integers(256, size=(n, 32, 32, 3), dtype=np.uint8),
          rng.permutation(np.arange(n) % 10),
      )
      for split, n in TINY.items()
  }


def batches(records):
  """Yields (file name, planes [n 3072], labels) as the archives divide them."""
  for split, parts in (('train', 5), ('test', 1)):
    images, labels = records[split]
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    for i in range(parts):
      name = f'data_batch_{i + 1}' if split == 'train' else 'test_batch'
      rows = slice(len(images) * i // parts, len(images) * (i + 1) // parts)
      yield name, planes[rows], labels[rows]


def binary_batch(planes, labels):
  rows = np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1)
  return rows.tobytes()


def python_batch(planes, labels):
  """Returns the batch as Python 2 and numpy of 2009 pickled it, by opcode."""

  def text(value):
    return b'U' + bytes([len(value)]) + value

  count, width = planes.shape
  integers = b''.join(b'K' + bytes([label]) for label in labels.tolist())
  return b''.join(
      (
          b'\x80\x02}(',
          text(b'batch_label') + text(b'training batch'),
          text(b'labels') + b'](' + integers + b'e',
          text(b'data'),
          b'cnumpy.core.multiarray\n_reconstruct\n',
          b'(cnumpy\nndarray\nK\x00\x85' + text(b'b') + b'tR',
          b'(K\x01' + struct.pack('<cicic', b'J', count, b'J', width, b'\x86'),
          b'cnumpy\ndtype\n(' + text(b'u1') + b'K\x00K\x01tR',
          b'(K\x03'
          + text(b'|')
          + b'NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb',
          b'\x89T' + struct.pack('<i', planes.size) + planes.tobytes() + b'tb',
          b'u.',
      )
  )


def write_archive(path, contents, folder='cifar-10-batches-bin'):
  with tarfile.open(path, 'w:gz', compresslevel=1) as tar:
    for name, content in contents.items():
      member = tarfile.TarInfo(f'{folder}/{name}')
      member.size = len(content)
      tar.addfile(member, io.BytesIO(content))
  return path


def binary_archive(path, records=None):
  contents = {'batches.meta.txt': b'airplane\n', 'readme.html': b'<p>'}
  # The last file first: the order in the tar must not matter.
  for name, planes, labels in reversed(
      list(batches(records or tiny_records()))
  ):
    contents[f'{name}.bin'] = binary_batch(planes, labels)
  return write_archive(path / 'cifar-10-binary.tar.gz', contents)


def python_archive(path, **replace):
  contents = {
      name: python_batch(planes, labels)
      for name, planes, labels in batches(tiny_records())
  }
  return write_archive(
      path / 'cifar-10-python.tar.gz',
      {'batches.meta': b'never read', **contents, **replace},
      folder='cifar-10-batches-py',
  )


def prepared(path):
  cifar10.prepare(str(path / 'tfds'), str(binary_archive(path)))
  return path / 'tfds' / 'cifar10' / '3.0.2'


@pytest.mark.parametrize('make', [binary_archive, python_archive])
def test_stock_tfds_reads_what_was_prepared(make, tmp_path, capfd):
  root = tmp_path / 'new' / 'tfds'
  final = cifar10.prepare(str(root), str(make(tmp_path)))
  out, err = capfd.readouterr()
  assert final == root / 'cifar10' / '3.0.2' and final.is_dir()
  assert os.listdir(root) == ['cifar10'] and not err
  assert 'is not the original archive' in out and len(out.splitlines()) == 3
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
  assert tuple(names) == cifar10.CLASSES


def test_facts_agree_with_the_official_builder():
  official = cifar.Cifar10._cifar_info.fget(cifar.Cifar10)
  for split, files in (
      ('train', official.train_files),
      ('test', official.test_files),
  ):
    assert [f'{name}.bin' for name in cifar10_archive.BATCHES[split]] == files
  known = checksums.get_all_url_infos()[official.url]
  assert known.checksum == cifar10_archive.SHA256[0]
  assert cifar10.CLASSES == tuple(sorted(cifar10.CLASSES))


def test_second_call_says_so_and_writes_nothing(tmp_path, capsys):
  final = prepared(tmp_path)
  before = {path: path.stat().st_mtime_ns for path in final.iterdir()}
  capsys.readouterr()
  assert cifar10.prepare(str(tmp_path / 'tfds'), 'no/such/archive') == final
  assert capsys.readouterr().out == (
      f'cifar10: already prepared in {final}, nothing done\n'
  )
  assert {path: path.stat().st_mtime_ns for path in final.iterdir()} == before


def test_empty_directory_means_the_tfds_default(monkeypatch, tmp_path):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  assert cifar10.dataset_dir('') == tmp_path / 'cifar10' / '3.0.2'
  monkeypatch.delenv('TFDS_DATA_DIR')
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  expected = tmp_path / 'home/tensorflow_datasets/cifar10/3.0.2'
  assert cifar10.dataset_dir('') == expected
  assert cifar10.dataset_dir('~/x') == tmp_path / 'home/x/cifar10/3.0.2'


def refused(tmp_path, archive):
  """Returns what `prepare` says, having checked that nothing is left."""
  root = tmp_path / 'tfds'
  with pytest.raises(UserError) as caught:
    cifar10.prepare(str(root), archive and str(archive))
  assert not root.exists() or os.listdir(root) == []
  message = str(caught.value)
  assert '\n' not in message
  return message


@pytest.mark.parametrize('interruption', [KeyboardInterrupt, MemoryError])
def test_interrupted_preparation_leaves_nothing(
    interruption, monkeypatch, tmp_path
):
  encode, calls = cifar10._encode_png, collections.Counter()

  def interrupted(planes):
    calls['png'] += 1
    if calls['png'] == 37:
      raise interruption
    return encode(planes)

  monkeypatch.setattr(cifar10, '_encode_png', interrupted)
  archive = binary_archive(tmp_path)
  with pytest.raises(interruption):
    cifar10.prepare(str(tmp_path / 'tfds'), str(archive))
  assert os.listdir(tmp_path / 'tfds') == []


@pytest.mark.parametrize(
    'lost',
    [
        'dataset_info.json',
        'features.json',
        'cifar10-train.array_record-00000-of-00001',
        'cifar10-test.array_record-00000-of-00001',
    ],
)
def test_half_written_data_set_is_named(lost, tmp_path):
  final = prepared(tmp_path)
  (final / lost).unlink()
  root = str(tmp_path / 'tfds')
  for call in (cifar10.prepare, cifar10.is_prepared):
    with pytest.raises(UserError) as caught:
      call(root)
    message = str(caught.value)
    assert message.startswith(f'{final} is half written')
    assert 'remove that directory' in message and '\n' not in message


def test_broken_description_is_half_written(tmp_path):
  final = prepared(tmp_path)
  (final / 'dataset_info.json').write_text('{')
  with pytest.raises(UserError, match='is half written'):
    cifar10.open_prepared(str(tmp_path / 'tfds'))
  shutil.rmtree(final)
  final.mkdir()
  with pytest.raises(UserError, match='is half written'):
    cifar10.open_prepared(str(tmp_path / 'tfds'))


def test_data_set_that_only_tensorflow_reads_is_named(tmp_path):
  final = prepared(tmp_path)
  path = final / 'dataset_info.json'
  description = json.loads(path.read_text())
  description['fileFormat'] = 'tfrecord'
  path.write_text(json.dumps(description))
  for shard in final.glob('*.array_record-*'):
    shard.rename(str(shard).replace('array_record', 'tfrecord'))
  with pytest.raises(UserError, match='tfrecord files, which only TensorFlow'):
    cifar10.is_prepared(str(tmp_path / 'tfds'))


def test_unwritable_directory(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError) as caught:
    root = tmp_path / 'file' / 'tfds'
    cifar10.prepare(str(root), str(binary_archive(tmp_path)))
  assert str(caught.value).startswith(
      f'cannot write the data directory {root}: Not a directory; choose'
  )


def test_full_disk(monkeypatch, tmp_path):
  def full(planes):
    raise RuntimeError('Failed to finalize writing: write() failed\nmore')

  monkeypatch.setattr(cifar10, '_encode_png', full)
  message = refused(tmp_path, binary_archive(tmp_path))
  assert 'cannot write the data directory' in message
  assert 'write() failed; choose' in message


def test_faster_process_wins(monkeypatch, tmp_path, capsys):
  final = prepared(tmp_path)
  answers = iter([None, object()])
  monkeypatch.setattr(cifar10, 'open_prepared', lambda _: next(answers))
  assert (
      cifar10.prepare(str(tmp_path / 'tfds'), str(binary_archive(tmp_path)))
      == final
  )
  assert os.listdir(tmp_path / 'tfds') == ['cifar10']


def test_offline_says_what_to_do(monkeypatch, tmp_path):
  def unreachable(url, **kwargs):
    raise requests.ConnectionError('three\nlines\nlong')

  monkeypatch.setattr(requests, 'get', unreachable)
  message = refused(tmp_path, None)
  assert '(ConnectionError)' in message
  assert 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz' in message
  assert '`gswinrmt prepare cifar10 --archive FILE`' in message
  assert '--config.data.dir' in message and 'TFDS_DATA_DIR' in message


def test_host_that_never_answers_is_given_up(monkeypatch, tmp_path):
  end = threading.Event()
  monkeypatch.setattr(requests, 'get', lambda url, **kwargs: end.wait(30))
  monkeypatch.setattr(cifar10, 'ANSWER_SECONDS', 0.2)
  start = time.monotonic()
  assert 'no answer in 0.2 s' in refused(tmp_path, None)
  assert time.monotonic() - start < 5
  end.set()


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
  assert cifar10.is_prepared(str(tmp_path / 'tfds'))


def test_download_with_another_checksum_is_refused(served, tmp_path):
  content = binary_archive(tmp_path).read_bytes()
  served('0' * 64, len(content))
  assert 'wrong checksum' in refused(tmp_path, None)


def test_download_that_the_server_lacks(served, tmp_path):
  assert '(HTTP 404)' in refused(tmp_path, None)


def test_download_without_a_known_checksum_is_refused(served, tmp_path):
  binary_archive(tmp_path)  # served, but `served()` was not told its checksum
  assert 'Missing checksums' in refused(tmp_path, None)
