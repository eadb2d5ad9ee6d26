"""Weights by name from the Hugging Face Hub, `hf-hub:OWNER/NAME[@REVISION]`."""

import pathlib
import re

from gswinrmt_jax.errors import UserError

PREFIX = 'hf-hub:'  # as timm has it
_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
# What `gswinrmt export --format safetensors` writes.
_FILES = ('config.json', 'model.safetensors')


def fetch(name: str) -> pathlib.Path:
  """Returns the folder that a repository's files are in, from now on at least.

  They stay in the hub's own cache, and are not fetched again from there.

  Args:
    name: `hf-hub:OWNER/NAME`, or with a branch, tag or commit
      `hf-hub:OWNER/NAME@REVISION`.

  Raises:
    UserError: If the name is none, the library is not installed, or the files
      cannot be had.
  """
  match = _NAME.fullmatch(name.removeprefix(PREFIX))
  if not match:
    raise UserError(f'{name}: should be {PREFIX}OWNER/NAME[@REVISION]')
  try:
    import huggingface_hub
  except ImportError as error:
    raise UserError(
        f"{name} needs huggingface_hub: pip install 'gswinrmt_jax[hub]'"
    ) from error
  repository, revision = match.groups()
  try:
    folder = huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=list(_FILES)
    )
  except Exception as error:  # Of the hub, of the network, of the disk.
    reason = str(error).strip().split('\n')[0] or type(error).__name__
    raise UserError(f'{name} cannot be fetched ({reason})') from error
  missing = [
      file for file in _FILES if not (pathlib.Path(folder) / file).exists()
  ]
  if missing:
    raise UserError(f'{name} has no {" and no ".join(missing)}')
  return pathlib.Path(folder)
