"""Reads MATLAB 5 files: numbers, text, structures and cells, nothing else.

The format is MathWorks' *MAT-File Format* (Level 5): elements of a tag, that
is type and length, and data padded to eight bytes. An array is an element of
elements: flags, dimensions, name, then what its class asks for.
"""

import struct
import zlib

import numpy as np

_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _CHAR = 1, 2, 4
# Type of an element -> of its numbers. 16 and 17 are UTF-8 and UTF-16.
_NUMBERS = dict(
    zip(
        (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17),
        'i1 u1 i2 u2 i4 u4 f4 f8 i8 u8 u1 u2'.split(),
        strict=True,
    )
)
_NUMERIC = range(6, 16)  # classes of arrays: double, single, integers


def read(content: bytes) -> dict[str, object]:
  """Returns the variables of a file by name.

  Numbers become flat arrays, text a string, a cell a list and an array of
  structures a list of dicts; dimensions are not kept.

  Raises:
    ValueError: If this is no such file, or has other kinds of arrays.
  """
  order = {b'IM': '<', b'MI': '>'}.get(content[126:128])
  if order is None:
    raise ValueError('not a MATLAB 5 file')
  try:
    return dict(
        _array(data, order)
        for kind, data in _elements(content[128:], order)
        if kind == _MATRIX
    )
  except (struct.error, zlib.error, IndexError, KeyError) as error:
    raise ValueError(f'damaged MATLAB file ({error})') from error


def _elements(data, order):
  """Yields (type, data) of the elements that lie one after the other."""
  at = 0
  while at + 8 <= len(data):
    kind, length = struct.unpack_from(order + '2I', data, at)
    if kind >> 16:  # Short: length, type and up to four bytes share a tag.
      kind, length = kind & 0xFFFF, kind >> 16
      yield kind, data[at + 4 : at + 4 + length]
      at += 8
      continue
    body = data[at + 8 : at + 8 + length]
    if len(body) < length:
      raise ValueError('the MATLAB file is cut off')
    if kind == _COMPRESSED:  # The one kind without padding.
      yield from _elements(zlib.decompress(body), order)
      at += 8 + length
    else:
      yield kind, body
      at += 8 + -(-length // 8) * 8


def _array(data, order):
  """Returns name and value of an array."""
  if not data:
    return '', np.empty(0)
  (_, flags), _, (_, name), *rest = _elements(data, order)
  kind = struct.unpack(order + 'I', flags[:4])[0] & 0xFF
  return name.decode('latin-1'), _value(kind, rest, order)


def _value(kind, rest, order):
  if kind == _CELL:
    return [_array(data, order)[1] for _, data in rest]
  if kind == _STRUCT:
    (_, width), (_, names), *fields = rest
    width = struct.unpack(order + 'i', width)[0]
    names = [
        names[i : i + width].split(b'\0')[0].decode('latin-1')
        for i in range(0, len(names), width)
    ]
    values = [_array(data, order)[1] for _, data in fields]
    return [
        dict(zip(names, values[i : i + len(names)], strict=True))
        for i in range(0, len(values), len(names))
    ]
  if kind != _CHAR and kind not in _NUMERIC:
    raise ValueError(f'arrays of class {kind} are not read')
  number, data = rest[0] if rest else (2, b'')
  numbers = np.frombuffer(data, order + _NUMBERS[number])
  if kind != _CHAR:
    return numbers
  if number == 16:
    return data.decode()
  return ''.join(map(chr, numbers))
