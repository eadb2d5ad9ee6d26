"""Writes run folders as training does, with made-up metrics."""

from collections.abc import Sequence
import json
import pathlib

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.data import datasets

STEPS, SECONDS = 10, 20.0  # per epoch


def write(
    folder: pathlib.Path,
    spec: str,
    accuracies: Sequence[float],
    *,
    seed: int = 0,
    test: float | None = None,
    overrides: Sequence[str] = (),
    classes: int = 10,
    summed_up: bool = True,
) -> pathlib.Path:
  """Writes a run with one epoch per accuracy; returns its folder.

  Args:
    folder: The run folder.
    spec: The value of `--config=`.
    accuracies: Validation accuracy of each epoch; mean IoU of a segmenter.
    seed: Seed of the run.
    test: Test score of every checkpoint; None if not tested. A segmenter's
      last class has no IoU.
    overrides: Arguments `--config.FIELD=VALUE`.
    classes: Number of classes of the data set.
    summed_up: Whether to write the summary.
  """
  overrides = [*overrides, f'--config.seed={seed}']
  config = recipes.resolve(recipe_files.load(spec, overrides))
  with config.unlocked():
    for split, own in _own_splits(config.data.name).items():
      if config.data[f'{split}_split'] == 'auto':
        config.data[f'{split}_split'] = own
  score = 'mean_iou' if config.segmenter.head else 'accuracy'
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps(config.to_dict()))
  epochs = [
      {
          'kind': 'epoch',
          'step': STEPS * epoch,
          'epoch': epoch,
          f'val_{score}': accuracy,
          'val_loss': 2 - accuracy,
          'steps': STEPS,
          'seconds': SECONDS,
      }
      for epoch, accuracy in enumerate(accuracies, 1)
  ]
  lines = [{'kind': 'train', 'step': 5, 'loss': 2.0}, *epochs]
  (folder / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line) + '\n' for line in lines)
  )
  seen = {
      'name': config.data.name,
      'class_names': [f'class {k}' for k in range(classes)],
      'mean': [0.5] * 3,
      'std': [0.25] * 3,
      'image_size': list(_image_size(config)),
      'crop': 1.0,
  }
  (folder / 'data.json').write_text(json.dumps(seen))
  if summed_up:
    summary = _summary(config, epochs, test, classes)
    (folder / 'summary.json').write_text(json.dumps(summary))
  return folder


def _own_splits(name):
  if name in ('cifar10', 'digits'):
    return datasets.own_splits(name)
  return {split: split for split in ('train', 'val', 'test')}


def _image_size(config):
  if config.segmenter.head:
    return config.data.crop_size
  return (config.data.image_size or 32,) * 2


def _summary(config, epochs, test, classes):
  score = 'val_mean_iou' if config.segmenter.head else 'val_accuracy'

  def checkpoint(entry):
    figures = {
        'step': entry['step'],
        'epoch': entry['epoch'],
        'weights': 'raw',
        score: entry[score],
    }
    if test is not None and config.segmenter.head:
      iou = [test + k / 100 for k in range(classes - 1)]
      figures |= {'test_mean_iou': test, 'test_loss': 1 - test / 2}
      figures |= {'test_pixel_accuracy': test + 0.25}
      figures |= {'test_class_iou': [*iou, None]}
    elif test is not None:
      figures |= {'test_accuracy': test, 'test_loss': 1 - test / 2}
      figures['test_smoothed_loss'] = 1.25 - test / 2
    return figures

  return {
      'model': config.model.name,
      'data': config.data.name,
      'seed': config.seed,
      'steps': epochs[-1]['step'],
      'total_steps': config.num_steps or STEPS * config.num_epochs,
      'seconds_per_epoch': SECONDS,
      'last': checkpoint(epochs[-1]),
      'best': checkpoint(max(epochs, key=lambda one: one[score])),
      'parameters': 1000,
  }
