"""Recipes: the fields of a config, their checks, and what recipes share.

A recipe is a file in `configs/` that returns a `ConfigDict`. Each field can be
overridden on the command line: `--config.optimizer.learning_rate=3e-4`. No
other fields are read, except those of the model (`models.factory.FIELDS`).
"""

from gswinrmt_jax.recipes.checks import check as check
from gswinrmt_jax.recipes.checks import check_values as check_values
from gswinrmt_jax.recipes.field import Field as Field
from gswinrmt_jax.recipes.field import SECTIONS as SECTIONS
from gswinrmt_jax.recipes.field import task as task
from gswinrmt_jax.recipes.fields import FIELDS as FIELDS
from gswinrmt_jax.recipes.protocols import ade20k as ade20k
from gswinrmt_jax.recipes.protocols import cifar10 as cifar10
from gswinrmt_jax.recipes.protocols import defaults as defaults
from gswinrmt_jax.recipes.protocols import detection as detection
from gswinrmt_jax.recipes.protocols import digits as digits
from gswinrmt_jax.recipes.protocols import mini_imagenet as mini_imagenet
from gswinrmt_jax.recipes.protocols import segmentation as segmentation
from gswinrmt_jax.recipes.protocols import set_reading as set_reading
from gswinrmt_jax.recipes.protocols import split_model as split_model
from gswinrmt_jax.recipes.protocols import with_argument as with_argument
from gswinrmt_jax.recipes.resolved import free_fields as free_fields
from gswinrmt_jax.recipes.resolved import from_json as from_json
from gswinrmt_jax.recipes.resolved import head_fields as head_fields
from gswinrmt_jax.recipes.resolved import head_values as head_values
from gswinrmt_jax.recipes.resolved import make_model as make_model
from gswinrmt_jax.recipes.resolved import model_fields as model_fields
from gswinrmt_jax.recipes.resolved import resolve as resolve
from gswinrmt_jax.recipes.used import check_used as check_used
