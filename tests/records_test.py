"""Records as arrays, decoded beforehand or when needed."""

import numpy as np
import pytest

from gswinrmt_jax.data import machine, pictures, records, sources
from gswinrmt_jax.errors import UserError


def _source(count, size=(6, 8), seed=0):
  rng = np.random.default_rng(seed)
  image = rng.integers(0, 256, (count, *size, 3), np.uint8)
  return sources.ArraySource(image, rng.integers(0, 9, count).astype(np.int32))


class _Uneven(sources.ArraySource):
  """The fourth image is wider."""

  def read(self, rows):
    for row, (picture, label) in zip(rows, super().read(rows), strict=True):
      yield (picture.resize((9, 6)) if row == 3 else picture), label


def test_without_a_size_images_are_as_stored():
  source = _source(5)
  decoded = records.Decoded(source)
  assert decoded.image_shape == (6, 8, 3) and len(decoded) == 5
  batch = decoded.gather(np.array([4, 1]))
  np.testing.assert_array_equal(batch['image'], source.image[[4, 1]])
  np.testing.assert_array_equal(batch['label'], source.label[[4, 1]])
  assert batch['label'].dtype == np.int32


@pytest.mark.parametrize('crop', [0.0, 0.75])
def test_with_a_size_they_are_fitted(crop):
  source = _source(3)
  decoded = records.Decoded(source, (5, 4), crop)
  batch = decoded.gather(range(3))
  for image, (picture, _) in zip(
      batch['image'], source.read(range(3)), strict=True
  ):
    np.testing.assert_array_equal(image, pictures.fit(picture, (5, 4), crop))


@pytest.mark.parametrize('threads', [1, 3])
def test_memory_holds_every_record_in_its_place(threads, monkeypatch):
  monkeypatch.setattr(records, '_CHUNK', 4)  # does not divide 19
  monkeypatch.setattr(machine, 'cores', lambda: threads)
  source = _source(19)
  arrays = records.to_memory(records.Decoded(source))
  np.testing.assert_array_equal(arrays.image, source.image)
  np.testing.assert_array_equal(arrays.label, source.label)
  batch = arrays.gather(np.array([18, 0]))
  np.testing.assert_array_equal(batch['image'], source.image[[18, 0]])


def test_sizes_that_differ_are_one_line():
  source = _source(5)
  uneven = records.Decoded(_Uneven(source.image, source.label))
  uneven.gather(range(3))
  said = 'record 3 has 9 x 6 pixels, the first 8 x 6: set config.data.image_si'
  for gather in (
      lambda: uneven.gather([2, 3]),
      lambda: records.to_memory(uneven),
  ):
    with pytest.raises(UserError, match=said):
      gather()
  fitted = records.Decoded(_Uneven(source.image, source.label), (4, 4))
  assert records.to_memory(fitted).image.shape == (5, 4, 4, 3)


def test_what_memory_cannot_hold_is_refused(monkeypatch):
  decoded = records.Decoded(_source(5))
  monkeypatch.setattr(machine, 'free_memory', lambda: 5 * 6 * 8 * 3 - 1)
  with pytest.raises(UserError, match='5 images of 6 x 8 pixels would take'):
    records.to_memory(decoded)
  monkeypatch.setattr(machine, 'free_memory', lambda: 5 * 6 * 8 * 3)
  assert len(records.to_memory(decoded)) == 5
  monkeypatch.setattr(machine, 'free_memory', lambda: None)
  assert len(records.to_memory(decoded)) == 5


def test_parts_are_decoded_ahead_but_not_all(monkeypatch):
  monkeypatch.setattr(machine, 'cores', lambda: 3)
  decoded = records.Decoded(_source(40))
  begun, gather = [], decoded.gather
  decoded.gather = lambda rows: begun.append(tuple(rows)) or gather(rows)
  parts = [[i] for i in range(39, -1, -1)]
  taken = 0
  for part, rows in zip(
      records.decode_ahead(decoded, parts), parts, strict=True
  ):
    np.testing.assert_array_equal(part['label'], decoded.source.label[rows])
    taken += 1
    assert len(begun) - taken <= 3
  assert taken == 40 and sorted(begun) == [(i,) for i in range(40)]
