"""Recipes: the fields of a config, their checks, and what recipes share.

A recipe is a file in `configs/` that returns a `ConfigDict`. Each field can be
overridden on the command line: `--config.optimizer.learning_rate=3e-4`. No
other fields are read, except those of the model (`models.factory.FIELDS`).
"""

from gswinrmt_jax.recipes.checks import check, check_values
from gswinrmt_jax.recipes.field import Field, SECTIONS, task
from gswinrmt_jax.recipes.fields import FIELDS
from gswinrmt_jax.recipes.protocols import (
    ade20k,
    cifar10,
    defaults,
    detection,
    digits,
    mini_imagenet,
    segmentation,
    set_reading,
    split_model,
    with_argument,
)
from gswinrmt_jax.recipes.resolved import (
    free_fields,
    from_json,
    head_fields,
    head_values,
    make_model,
    model_fields,
    resolve,
)
from gswinrmt_jax.recipes.used import check_used

__all__ = [
    'FIELDS',
    'SECTIONS',
    'Field',
    'ade20k',
    'check',
    'check_used',
    'check_values',
    'cifar10',
    'defaults',
    'detection',
    'digits',
    'free_fields',
    'from_json',
    'head_fields',
    'head_values',
    'make_model',
    'mini_imagenet',
    'model_fields',
    'resolve',
    'segmentation',
    'set_reading',
    'split_model',
    'task',
    'with_argument',
]
