"""Loads a trained model for images."""

from collections.abc import Callable
import pathlib

from gswinrmt_jax.deploy.classifier import LoadedClassifier
from gswinrmt_jax.deploy.detector import LoadedDetector
from gswinrmt_jax.deploy.segmenter import LoadedSegmenter
from gswinrmt_jax.weights import load as weights_lib

_KINDS = {
    'classification': LoadedClassifier,
    'segmentation': LoadedSegmenter,
    'detection': LoadedDetector,
}


def load_model(
    source: str | pathlib.Path,
    *,
    image_size: int | tuple[int, int] | None = None,
    dtype: str = 'float32',
    step: int | str = 'best',
    which: str | None = None,
) -> LoadedClassifier | LoadedSegmenter | LoadedDetector:
  """Returns a trained model with its preprocessing and class names.

      loaded = load_model('digits_small')
      print(loaded.predict('examples/images/digit_0.png'))
      logits = loaded.logits('examples/images/digit_0.png')

  The variables are replicated on all devices of this process.

  Args:
    source: A name in `list_models(pretrained=True)`, a run folder, one of its
      checkpoints (RUN/checkpoints/STEP), a folder of weights, a `.safetensors`
      file, a `.pth` file of RMT, or `hf-hub:OWNER/NAME[@REVISION]`. An existing
      file or folder takes precedence over a name.
    image_size: Height and width that images are resized to, or one number for
      both; None takes the size that the weights were trained for. Any size
      from the stride of the last stage upwards runs, but accuracy holds only
      near the trained size: another one prints a warning. Above the trained
      size, no margin is cut off. For a segmenter or detector, one number: the
      shorter side of the images, whose longer side is at most 4 times as long
      (detectors: 5/3).
    dtype: Computation dtype, 'float32' or 'bfloat16'.
    step: For a run: 'best' on validation data, 'latest' or a number.
    which: For a run: 'raw', or 'ema' for the moving average; None takes the one
      with the better validation accuracy at that step.

  Raises:
    UserError: If no weights can be read, or the model does not take images of
      this size.
    ValueError: If `image_size` is not made of whole numbers above 0, or not one
      number for a segmenter or detector.
  """
  weights = weights_lib.load(source, step=step, which=which)
  return from_weights(weights, image_size, dtype)


def from_weights(
    weights: weights_lib.Weights,
    image_size: int | tuple[int, int] | None = None,
    dtype: str = 'float32',
    warn: Callable[[str], None] = print,
) -> LoadedClassifier | LoadedSegmenter | LoadedDetector:
  """Returns a model as `load_model` does, from weights already loaded.

  `warn` receives a message if the image size is not that of training.

  Raises:
    UserError: If the model does not take images of this size.
    ValueError: If `image_size` is wrong, as in `load_model`.
  """
  loaded = _KINDS[weights.task](weights, image_size, dtype)
  classifies = weights.task == 'classification'
  size = loaded.image_size if classifies else loaded.fit_within
  weights.warn_of_size(size, warn)
  return loaded
