"""The 1,797 UCI handwritten digits, which ship inside this package.

Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, CC BY 4.0
(digits.LICENSE.txt in this folder): 8 x 8 pixels of 0 to 16, ten classes.

The split into train, val and test is fixed, 1,297 / 200 / 300 images, and
stored as indices. It was drawn with seed 0 and is stratified: test has each
class in proportion, rounded by largest remainders, then val in the same way
from the rest. The images of a class are ordered by the SHA-256 of 'SEED:INDEX';
the first go to test, the next to val, the rest to train. The writers are not
known, so splits may share them.
"""

from importlib import resources

import numpy as np

from gswinrmt_jax.errors import UserError

CLASSES = tuple('0123456789')
SPLITS = ('train', 'val', 'test')
# Statistics of the train split's pixels / 255; the three channels are equal.
MEAN = (0.3045,) * 3
STD = (0.3755,) * 3

_SCENES = {'train': 192, 'val': 64, 'test': 64}  # images with several digits
_REPEAT = 4  # 8 x 8 pixels become 32 x 32, the size the models are made for.


def read_masks(split: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns images as `read` does, and the classes of pixels, uint8 [n 32 32].

  Pixels with ink of at least 8 of 16 have the class of the digit. Pixels
  without ink are background, 10. The others have no class, 255.
  """
  image, label = read(split)
  ink = image[..., 0]
  mask = np.where(ink >= 128, label[:, None, None], 255)
  return image, np.where(ink == 0, len(CLASSES), mask).astype(np.uint8)


def read_scenes(
    split: str,
) -> list[tuple[np.ndarray, list[tuple[int, np.ndarray]]]]:
  """Returns made scenes: images with the class and the pixels of each digit.

  Up to five digits of a split, enlarged two, three or four times, lie apart on
  a grey, noisy image of 56 to 96 pixels along each axis. Everything is drawn
  with the split's own seed.

  Returns:
    For each scene its image, uint8 [h w 3], and for each digit its class and
    where it has ink, bool [h w].
  """
  image, label = read(split)
  digits = image[:, ::_REPEAT, ::_REPEAT, 0]
  rng = np.random.default_rng(SPLITS.index(split))
  scenes = []
  for _ in range(_SCENES[split]):
    height, width = rng.integers(7, 13, size=2) * 8
    scene = rng.integers(30, 90, size=(height, width)).astype(np.uint8)
    taken, found = np.zeros((height, width), bool), []
    for _ in range(rng.integers(0, 6)):
      row, times = rng.integers(len(digits)), rng.integers(2, 5)
      digit = digits[row].repeat(times, axis=0).repeat(times, axis=1)
      top, left = (rng.integers(side - len(digit)) for side in scene.shape)
      place = np.s_[top : top + len(digit), left : left + len(digit)]
      if taken[place].any():
        continue
      taken[place] = True
      scene[place] = np.maximum(scene[place], digit)
      ink = np.zeros((height, width), bool)
      ink[place] = digit > 0
      found.append((int(label[row]), ink))
    scenes.append((np.stack([scene] * 3, axis=-1), found))
  return scenes


def read(split: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns uint8 images [n 32 32 3] and int32 labels [n] of a split.

  Each pixel v of 0..16 becomes a 4 x 4 block of round(255 v / 16) in three
  equal channels.

  Raises:
    UserError: If there is no such split.
  """
  if split not in SPLITS:
    raise UserError(
        f'digits has no split {split!r}: it has {", ".join(SPLITS)}, which '
        'cannot be sliced'
    )
  path = resources.files(__package__) / 'digits.npz'
  with path.open('rb') as file, np.load(file) as data:
    chosen = data[split]
    pixels = data['image'][chosen].astype(np.float64)
    label = data['label'][chosen].astype(np.int32)
  grey = np.rint(pixels * 255 / 16).astype(np.uint8)
  grey = grey.repeat(_REPEAT, axis=1).repeat(_REPEAT, axis=2)
  return np.stack([grey] * 3, axis=-1), label
