"""Draws the true objects of made scenes of digits: digit_objects.png.

python docs/images/digit_objects.py
"""

import pathlib

import numpy as np
import PIL.Image

from gswinrmt_jax.data import detection, digits
from gswinrmt_jax.deploy.detections import ObjectDetections

_CELLS, _TIMES, _COUNT = 28, 4, 3  # cells and pixels along an axis; scenes


def _drawn(scene):
  """Returns a picture of a scene's truth, with invented scores."""
  image, found = scene
  objects = detection.from_masks(found)
  pairs = zip(objects.masks, objects.boxes, strict=True)
  cells = [detection.crop(m, len(image), box, _CELLS) for m, box in pairs]
  return ObjectDetections(
      image='scene',
      pixels=image.repeat(_TIMES, axis=0).repeat(_TIMES, axis=1),
      boxes=objects.boxes * _TIMES,
      scores=np.linspace(0.98, 0.61, len(found)),
      labels=objects.labels,
      names=digits.CLASSES,
      cells=np.float32(cells),
  ).picture()


def main():
  """Writes the picture next to this file."""
  scenes = [x for x in digits.read_scenes('test') if len(x[0]) == 72]
  scenes.sort(key=lambda scene: -len(scene[1]))
  drawn = [_drawn(scene) for scene in scenes[:_COUNT]]
  gap = 12
  across = sum(picture.width + gap for picture in drawn) - gap
  whole = PIL.Image.new('RGB', (across, max(p.height for p in drawn)), 'white')
  left = 0
  for picture in drawn:
    whole.paste(picture, (left, 0))
    left += picture.width + gap
  whole.quantize(128).save(
      pathlib.Path(__file__).with_suffix('.png'), optimize=True
  )


if __name__ == '__main__':
  main()
