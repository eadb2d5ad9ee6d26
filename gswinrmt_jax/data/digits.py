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
