"""One bit, the order, and the checksums of earlier versions."""

import numpy as np

from gswinrmt_jax.checkpoints import checksums


def _tree():
  return {'a': np.arange(6, dtype=np.float32), 'b': (np.float32(0), np.ones(2))}


def _with_one_bit():
  tree = _tree()
  tree['a'].view(np.uint32)[3] ^= 1
  return tree


def test_checksum_sees_one_bit_and_the_order():
  swapped = {**_tree(), 'a': _tree()['a'][::-1]}
  trees = (_tree(), _with_one_bit(), swapped)
  assert len({checksums.checksum(tree) for tree in trees}) == 3
  assert checksums.checksum(_tree()) == checksums.checksum(_tree())


def test_each_array_is_named():
  assert list(checksums.by_name(_tree())) == ['a', 'b/0', 'b/1']


def test_what_differs_is_named():
  saved = checksums.by_name(_tree())
  assert checksums.differing(saved, _tree()) == []
  assert checksums.differing(saved, _with_one_bit()) == ['a']
  # What was not read is not compared.
  assert checksums.differing(saved, {'b': _tree()['b']}) == []


def test_earlier_versions_have_one_for_each_field_or_none():
  saved = {name: checksums.checksum(part) for name, part in _tree().items()}
  assert checksums.differing(saved, _tree()) == []
  assert checksums.differing(saved, _with_one_bit()) == ['a']
  assert checksums.differing({}, _with_one_bit()) == []
