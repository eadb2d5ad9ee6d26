"""Tests resizing and crops, among them the random ones of training."""

import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.data import resizing


def test_the_cut_is_that_of_imagenet():
  """Short side to 256, long side rounded down, central 224 x 224."""
  noise = np.random.default_rng(1).integers(0, 255, (375, 500, 3), np.uint8)
  picture = PIL.Image.fromarray(noise)
  resized = picture.resize((341, 256), PIL.Image.Resampling.BICUBIC)
  want = np.asarray(resized)[16:240, 58:282]  # round(117 / 2) is 58
  np.testing.assert_array_equal(
      resizing.center_crop(picture, (224, 224), 224 / 256), want
  )
  # floor(256 * 499 / 375) is 340, which rounding would make 341.
  upright = picture.transpose(PIL.Image.Transpose.ROTATE_90).crop(
      (0, 0, 375, 499)
  )
  resized = upright.resize((256, 340), PIL.Image.Resampling.BICUBIC)
  want = np.asarray(resized)[58:282, 16:240]
  np.testing.assert_array_equal(
      resizing.center_crop(upright, (224, 224), 0.875), want
  )


@pytest.mark.parametrize(('side', 'first'), [(343, 60), (341, 58), (342, 59)])
def test_the_middle_is_rounded_to_even(side, first):
  """As by torchvision: round(119 / 2) is 60, round(117 / 2) is 58."""
  noise = np.random.default_rng(1).integers(0, 255, (256, side, 3), np.uint8)
  for pixels in (noise, noise.transpose(1, 0, 2)):
    got = resizing.center_crop(
        PIL.Image.fromarray(pixels), (224, 224), 224 / 256
    )
    want = noise[16:240, first : first + 224]
    want = want if pixels is noise else want.transpose(1, 0, 2)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ('crop', 'resized'), [(0.875, 256), (0.9, 248), (0.95, 235), (0.96, 233)]
)
def test_the_size_before_the_crop_is_rounded_down(crop, resized, monkeypatch):
  sizes, resize = [], PIL.Image.Image.resize

  def measured(self, size, *how):
    sizes.append(size)
    return resize(self, size, *how)

  monkeypatch.setattr(PIL.Image.Image, 'resize', measured)
  resizing.center_crop(PIL.Image.new('RGB', (300, 300)), (224, 224), crop)
  assert sizes == [(resized, resized)]


def test_without_a_crop_all_of_the_picture_is_squeezed():
  noise = np.random.default_rng(1).integers(0, 255, (30, 50, 3), np.uint8)
  picture = PIL.Image.fromarray(noise)
  want = picture.resize((9, 12), PIL.Image.Resampling.BICUBIC)
  np.testing.assert_array_equal(
      resizing.center_crop(picture, (12, 9), 0.0), want
  )
  # Antialiased: a checkerboard of single pixels is grey at a quarter the size.
  board = np.indices((40, 40)).sum(0) % 2 * 255
  board = PIL.Image.fromarray(board.astype(np.uint8)).convert('RGB')
  grey = resizing.center_crop(board, (10, 10), 0.0)
  assert abs(np.float32(grey) - 127.5).max() < 3


class _Draws:
  """A random generator that returns the given numbers."""

  def __init__(self, *numbers):
    self.numbers = list(numbers)

  def random(self):
    return self.numbers.pop(0)


def test_a_box_is_what_was_drawn():
  how = resizing.RandomCrop((0.1, 0.9), (0.5, 2.0))
  # Area 0.5 x 1200 = 600 and ratio exp(0) = 1: 24.49, so 24, each way. Top is
  # 0.5 of the 30 - 24 + 1 = 7 positions, left is 0.25 of the 17.
  box = resizing.draw_box(40, 30, how, _Draws(0.5, 0.5, 0.5, 0.25))
  assert box == (4, 3, 24, 24)
  # Area 0.2 x 1200 = 240, ratio 2^0.5: 18.4 wide, 13.0 high.
  box = resizing.draw_box(40, 30, how, _Draws(0.125, 0.75, 0.0, 0.9999999))
  assert box == (22, 0, 18, 13)


def test_a_box_that_does_not_fit_is_drawn_again():
  how = resizing.RandomCrop((1.0, 1.0), (0.25, 4.0))
  # The whole area fits into a square at ratio 1, but not at 1/4 or 4.
  draws = _Draws(0.5, 0.0, 0.5, 1.0, 0.5, 0.5, 0.0, 0.0)
  assert resizing.draw_box(20, 20, how, draws) == (0, 0, 20, 20)
  assert draws.numbers == []


@pytest.mark.parametrize(
    ('size', 'ratio', 'box'),
    [
        ((100, 20), (0.5, 2.0), (30, 0, 40, 20)),  # too wide
        ((20, 100), (0.5, 2.0), (0, 30, 20, 40)),  # too narrow
        ((30, 20), (0.5, 2.0), (0, 0, 30, 20)),  # ratio is allowed
        ((1, 900), (3.0, 4.0), (0, 449, 1, 1)),  # never less than a pixel
    ],
)
def test_after_ten_the_middle_is_taken(size, ratio, box):
  how = resizing.RandomCrop((9.0, 9.0), ratio)  # never fits
  draws = _Draws(*[0.5] * 20)
  assert resizing.draw_box(*size, how, draws) == box
  assert draws.numbers == []


def test_boxes_have_the_areas_shapes_and_places_asked_for():
  how = resizing.RandomCrop((0.2, 0.6), (0.75, 4 / 3))
  rng = np.random.default_rng(0)
  boxes = np.array([resizing.draw_box(500, 400, how, rng) for _ in range(4000)])
  left, top, width, height = boxes.T
  assert (left >= 0).all() and (left + width <= 500).all()
  assert (top >= 0).all() and (top + height <= 400).all()
  share, ratio = width * height / 200_000, np.log(width / height)
  assert 0.195 < share.min() < 0.21 and 0.59 < share.max() < 0.605
  # U(a, b) has mean (a + b) / 2 and standard deviation (b - a) / 12^0.5.
  np.testing.assert_allclose(share.mean(), 0.4, atol=0.006)
  np.testing.assert_allclose(share.std(), 0.4 / 12**0.5, atol=0.004)
  np.testing.assert_allclose(ratio.mean(), 0, atol=0.01)
  np.testing.assert_allclose(
      ratio.std(), 2 * np.log(4 / 3) / 12**0.5, atol=0.005
  )
  np.testing.assert_allclose((left / (500 - width)).mean(), 0.5, atol=0.015)
  np.testing.assert_allclose((top / (400 - height)).mean(), 0.5, atol=0.02)


def test_a_random_crop_is_its_box_resized():
  noise = np.random.default_rng(2).integers(0, 255, (30, 50, 3), np.uint8)
  picture = PIL.Image.fromarray(noise)
  how = resizing.RandomCrop()
  image, box = resizing.random_crop(
      picture, (12, 9), how, np.random.default_rng(3)
  )
  left, top, width, height = resizing.draw_box(
      50, 30, how, np.random.default_rng(3)
  )
  assert box == (top / 30, left / 50, height / 30, width / 50)
  part = PIL.Image.fromarray(noise[top : top + height, left : left + width])
  want = part.resize((9, 12), PIL.Image.Resampling.BICUBIC)
  np.testing.assert_array_equal(image, want)
