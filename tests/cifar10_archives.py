"""Archives of CIFAR-10 with 50 + 20 images, in both released formats."""

import functools
import io
import struct
import tarfile

import numpy as np

PER_CLASS = {'train': 5, 'test': 2}
TINY = {'train': 50, 'test': 20}


@functools.cache
def tiny_records():
  """Returns {split: (uint8 [n 32 32 3], labels [n])}, in random order."""
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
  """Returns the batch as Python 2 and NumPy pickled it in 2009, by opcode."""

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
