"""Weights by name from the Hugging Face Hub, `hf-hub:OWNER/NAME[@REVISION]`."""

import pathlib
import re

from gswinrmt_jax.errors import UserError

PREFIX = 'hf-hub:'  # as in timm
_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
# The files that `gswinrmt export --format safetensors` writes.
_FILES = ('config.json', 'model.safetensors')


def fetch(name: str) -> pathlib.Path:
  """Returns the folder with the files of a repository.

  The folder belongs to the hub's own cache: nothing is fetched twice.

  Args:
    name: `hf-hub:OWNER/NAME`, or with a branch, tag or commit
      `hf-hub:OWNER/NAME@REVISION`.

  Raises:
    UserError: If it is no such name, the library is not installed, or the files
      cannot be fetched.
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
  except Exception as error:  # Hub, network or disk.
    reason = str(error).strip().split('\n')[0] or type(error).__name__
    raise UserError(f'{name} cannot be fetched ({reason})') from error
  folder = pathlib.Path(folder)
  missing = [file for file in _FILES if not (folder / file).exists()]
  if missing:
    raise UserError(f'{name} has no {" and no ".join(missing)}')
  return folder
