"""Tests decoding of every kind of image file, against Pillow."""

import io
import struct
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from gswinrmt_jax.data import pictures
from gswinrmt_jax.errors import UserError

_RED = (200, 30, 10)


def _saved(tmp_path, picture, name='a.png', **options):
  picture.save(tmp_path / name, **options)
  return tmp_path / name


def test_every_mode_becomes_rgb(tmp_path):
  red = PIL.Image.new('RGB', (5, 4), _RED)
  grey = PIL.Image.new('L', (5, 4), 77)
  clear = PIL.Image.new('RGBA', (5, 4), (*_RED, 0))
  wide = PIL.Image.fromarray(np.full((4, 5), 77 << 8, np.uint16))
  cases = {
      'rgb.png': (red, _RED),
      'palette.png': (red.quantize(4), _RED),
      'cmyk.jpg': (red.convert('CMYK'), _RED),
      'grey.png': (grey, (77, 77, 77)),
      'alpha.png': (grey.convert('LA'), (77, 77, 77)),
      'one.png': (PIL.Image.new('1', (5, 4), 1), (255, 255, 255)),
      'clear.png': (clear, (255, 255, 255)),  # not the hidden red
      'wide.png': (wide, (77, 77, 77)),  # 16 bits
      'float.tiff': (
          PIL.Image.fromarray(np.full((4, 5), 77 / 255, np.float32)),
          (77, 77, 77),
      ),
  }
  for name, (picture, color) in cases.items():
    read = pictures.read(_saved(tmp_path, picture, name))
    assert read.mode == 'RGB' and read.size == (5, 4), name
    off = np.abs(np.int32(read) - color).max()
    assert off <= (3 if name.endswith('jpg') else 1), name


def _label(path):
  return pictures.open_label(path.read_bytes(), pictures.LabelCoding())


def test_a_bmp_that_pillow_misreads_is_refused(tmp_path):
  """It takes bytes for eight pixels if their palette is black and white."""
  mask = PIL.Image.fromarray(np.eye(9, dtype=np.uint8)).convert('P')
  for white, refused in ((255, True), (254, False)):
    mask.putpalette([0, 0, 0, white, white, white])
    path = _saved(tmp_path, mask, 'mask.bmp')
    for read in (_label, pictures.read):
      if refused:
        with pytest.raises((ValueError, UserError), match='is a BMP of more'):
          read(path)
      else:
        found = np.asarray(read(path)).reshape(9, 9, -1)
        assert (found[..., 0] > 0).tolist() == np.eye(9, dtype=bool).tolist()
  # Two runs of nine pixels, with the palette and offset of a compressed BMP.
  palette = bytes([0, 0, 0, 0, 255, 255, 255, 0])
  pixels = bytes([9, 0, 0, 0, 9, 1, 0, 1])
  head = struct.pack('<IiiHHIIiiII', 40, 9, 2, 1, 8, 1, len(pixels), 0, 0, 2, 2)
  start = 14 + len(head) + len(palette)
  content = head + palette + pixels
  content = struct.pack('<2sIII', b'BM', 14 + len(content), 0, start) + content
  with pytest.raises(ValueError, match='is a BMP of more'):
    pictures.open_rgb(content)
  one = PIL.Image.fromarray(np.eye(9, dtype=bool))
  found = pictures.read(_saved(tmp_path, one, 'one.bmp'))
  np.testing.assert_array_equal(np.asarray(found)[..., 0], 255 * np.eye(9))


def _deep(tmp_path, values, kind):
  array = np.array([values], kind)
  return _saved(tmp_path, PIL.Image.fromarray(array), 'deep.tiff')


@pytest.mark.parametrize(
    ('kind', 'values', 'want'),
    [
        # round(v / 257): a dark image stays dark, whatever its brightest pixel.
        (np.uint16, [0, 200, 257, 19789], [0, 1, 1, 77]),
        (np.uint16, [0, 65535], [0, 255]),
        (np.int32, [0, 200, 257, 19789], [0, 1, 1, 77]),
        (np.int32, [0, 65535], [0, 255]),
        (np.float32, [0, 0.1, 0.2], [0, 26, 51]),  # 0.1 is 25.500002
        (np.float32, [0, 1], [0, 255]),
    ],
)
def test_the_scale_is_that_of_the_kind(kind, values, want, tmp_path):
  read = np.asarray(pictures.read(_deep(tmp_path, values, kind)))
  assert read[0].tolist() == [[value] * 3 for value in want]


@pytest.mark.parametrize(
    ('kind', 'values'),
    [
        (np.int32, [0, 65536]),
        (np.int32, [-1, 5]),
        (np.float32, [0, 1.01]),
        (np.float32, [-0.01, 1]),
        (np.float32, [0, np.nan]),
        (np.float32, [np.inf, 0]),
    ],
)
def test_another_range_is_refused(kind, values, tmp_path):
  with pytest.raises(UserError, match=r'deep\.tiff has pixels of'):
    pictures.read(_deep(tmp_path, values, kind))


def test_twelve_bits_are_refused():
  """Pillow keeps their range in 16 bits: white would be almost black."""
  tags = {256: 2, 257: 1, 258: 12, 259: 1, 262: 1, 277: 1, 278: 1, 279: 3}
  tags[273] = 8 + 2 + 12 * (len(tags) + 1) + 4  # where the pixels are
  entries = [
      struct.pack('<HHII', tag, 3, 1, value)
      for tag, value in sorted(tags.items())
  ]
  head = b'II*\0' + struct.pack('<IH', 8, len(entries))
  content = head + b''.join(entries) + bytes(4) + b'\xff\xf8\x00'
  with pytest.raises(ValueError, match='has 12 bits per pixel: store 8 or'):
    pictures.open_rgb(content)


@pytest.mark.parametrize(('size', 'refused'), [((5, 4), True), ((2, 2), False)])
def test_pages_of_a_tiff_are_refused_but_for_a_thumbnail(size, refused):
  file = io.BytesIO()
  first, other = (PIL.Image.new('L', each, 9) for each in ((5, 4), size))
  first.save(file, 'TIFF', save_all=True, append_images=[other])
  for read in (
      pictures.open_rgb,
      lambda content: pictures.open_label(content, pictures.LabelCoding()),
  ):
    if refused:
      with pytest.raises(ValueError, match='has several pages of one size'):
        read(file.getvalue())
    else:
      read(file.getvalue())
  with PIL.Image.open(file) as image:  # A page that is chosen may be read.
    image.seek(1)
    assert pictures.to_rgb(image).size == size


@pytest.mark.parametrize('dtype', ['uint8', 'uint16', 'float32'])
def test_a_tiff_in_which_0_is_white_is_read_or_refused(dtype):
  file = io.BytesIO()
  array = np.full((4, 5), {'uint16': 60000}.get(dtype, 240), dtype)
  PIL.Image.fromarray(array).save(file, 'TIFF', tiffinfo={262: 0})
  if dtype == 'uint8':
    image, _ = pictures.open_rgb(file.getvalue())
    assert image.getpixel((0, 0)) == (240, 240, 240)
  else:
    with pytest.raises(ValueError, match='and 0 is white: invert it'):
      pictures.open_rgb(file.getvalue())


def test_a_rotated_tiff_is_counted_and_refused_as_a_label():
  file, exif = io.BytesIO(), PIL.Image.Exif()
  exif[0x0112] = 6
  PIL.Image.new('L', (5, 4), 1).save(file, 'TIFF', exif=exif)
  _, stored = pictures.open_rgb(file.getvalue())
  assert stored.turned
  with pytest.raises(ValueError, match='EXIF'):
    pictures.open_label(file.getvalue(), pictures.LabelCoding())


def test_labels_of_sixteen_bits_in_either_order():
  for kind in ('<u2', '>u2'):
    file = io.BytesIO()
    mode = {'<u2': 'I;16', '>u2': 'I;16B'}[kind]
    image = PIL.Image.frombytes(mode, (2, 1), np.array([1, 3], kind).tobytes())
    image.save(file, 'TIFF')
    label = pictures.open_label(file.getvalue(), pictures.LabelCoding())
    assert label.tolist() == [[1, 3]]


def test_a_transparent_color_of_a_palette_is_white(tmp_path):
  picture = PIL.Image.new('P', (5, 4), 1)
  picture.putpalette([0, 0, 0, *_RED])
  path = _saved(tmp_path, picture, transparency=1)
  assert pictures.read(path).getpixel((0, 0)) == (255, 255, 255)


def test_what_is_no_picture_is_one_line(tmp_path, monkeypatch):
  path = tmp_path / 'a.png'
  noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
  whole = _saved(tmp_path, PIL.Image.fromarray(noise)).read_bytes()
  # Pillow would run Ghostscript on an EPS file.
  eps = _saved(tmp_path, PIL.Image.new('L', (5, 4)), 'a.eps').read_bytes()
  for content, said in (
      (b'', r'a\.png is empty$'),
      (b'no picture', r'a\.png is not an image that can be read \(BMP'),
      (eps, r'a\.png is not an image that can be read \(BMP'),
      (whole[:5000], r'a\.png is damaged'),
      (None, r'a\.png does not exist'),
  ):
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=said):
      pictures.read(path)
  with pytest.raises(UserError, match='is a folder: name image files in it'):
    pictures.read(tmp_path)
  path.write_bytes(whole)
  monkeypatch.setattr(PIL.Image, 'MAX_IMAGE_PIXELS', 64**2)
  pictures.read(path)
  for most in (64**2 - 1, 64**2 // 2 - 1):  # Pillow warns, and refuses.
    monkeypatch.setattr(PIL.Image, 'MAX_IMAGE_PIXELS', most)
    with pytest.raises(UserError, match=f'png has more than {most:,} pixels$'):
      pictures.read(path)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
@pytest.mark.parametrize('orientation', range(1, 10))
def test_every_orientation_is_that_of_pillow(kind, orientation, tmp_path):
  noise = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
  exif = PIL.Image.Exif()
  exif[0x0112] = orientation
  path = tmp_path / f'a.{kind}'
  PIL.Image.fromarray(noise).save(path, kind, exif=exif)
  with PIL.Image.open(path) as image:
    want = np.asarray(PIL.ImageOps.exif_transpose(image).convert('RGB'))
  np.testing.assert_array_equal(pictures.read(path), want)
  with PIL.Image.open(path) as image:
    np.testing.assert_array_equal(pictures.to_rgb(image), want)


def _chunk(kind, content):
  checked = kind + content
  size, crc = len(content), zlib.crc32(checked)
  return struct.pack('>I', size) + checked + struct.pack('>I', crc)


def _png(header, rows, *chunks):
  """Returns a PNG of these bytes in rows, with the chunks before its data."""
  data = b''.join(b'\0' + row for row in rows)
  parts = [
      b'\x89PNG\r\n\x1a\n',
      _chunk(b'IHDR', struct.pack('>IIBBBBB', *header)),
  ]
  parts += chunks
  parts += [_chunk(b'IDAT', zlib.compress(data)), _chunk(b'IEND', b'')]
  return b''.join(parts)


@pytest.mark.parametrize(
    'chunk',
    [
        _chunk(b'eXIf', b'this is no TIFF'),
        _chunk(b'tEXt', b'XML:com.adobe.xmp\0tiff:Orientation="99"'),
    ],
)
def test_broken_metadata_does_not_damage_an_image(chunk):
  content = _png((2, 2, 8, 0, 0, 0, 0), [b'\x05\x09', b'\x07\x08'], chunk)
  image = np.asarray(pictures.decode(content, 'a'))
  np.testing.assert_array_equal(image[..., 0], [[5, 9], [7, 8]])


@pytest.mark.parametrize(
    'content',
    [
        _png((4, 1, 2, 0, 0, 0, 0), [b'\x1b']),
        _png((4, 1, 4, 0, 0, 0, 0), [b'\x01\x23']),
        b'P5 4 1 15\n\0\1\2\3',
        b'P2 4 1 3\n0 1 2 3\n',
        b'P5 4 1 1000\n\0\0\0\1\0\2\0\3',
    ],
)
def test_labels_that_decoding_would_scale_are_refused(content):
  with pytest.raises(ValueError, match='store classes as 8-bit grey levels'):
    pictures.open_label(content, pictures.LabelCoding())


@pytest.mark.parametrize(
    'content',
    [
        _png((4, 1, 8, 0, 0, 0, 0), [b'\0\1\2\3']),
        _png((4, 1, 2, 3, 0, 0, 0), [b'\x1b'], _chunk(b'PLTE', bytes(12))),
        b'P5 4 1 255\n\0\1\2\3',
        b'P2 4 1 255\n0 1 2 3\n',
        b'P5 4 1 65535\n\0\0\0\1\0\2\0\3',
    ],
)
def test_labels_are_the_stored_values(content):
  label = pictures.open_label(content, pictures.LabelCoding())
  assert label.tolist() == [[0, 1, 2, 3]]


def test_the_smallest_labels_have_one_bit():
  label = pictures.open_label(
      _png((4, 1, 1, 0, 0, 0, 0), [b'\x50']), pictures.LabelCoding()
  )
  assert label.tolist() == [[0, 1, 0, 1]]


def test_an_image_is_not_damaged_if_memory_runs_out(tmp_path, monkeypatch):
  path = tmp_path / 'a.png'
  PIL.Image.new('RGB', (3, 2)).save(path)

  def load(image):
    raise MemoryError

  monkeypatch.setattr(PIL.Image.Image, 'load', load)
  with pytest.raises(MemoryError):
    pictures.read(path)


def test_a_transparent_grey_of_sixteen_bits_is_white():
  row = struct.pack('>HH', 1000, 40_000)
  content = _png(
      (2, 1, 16, 0, 0, 0, 0), [row], _chunk(b'tRNS', struct.pack('>H', 1000))
  )
  image = np.asarray(pictures.decode(content, 'a'))
  np.testing.assert_array_equal(image[0, :, 0], [255, 156])
