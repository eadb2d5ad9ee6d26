"""The Hugging Face Hub: downloads weights by `hf-hub:OWNER/NAME[@REVISION]`."""

import pathlib
import re

from gswinrmt_jax.errors import UserError

PREFIX = 'hf-hub:'  # as in timm
FILES = ('config.json', 'model.safetensors')  # those that loading needs
_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')


def fetch(name: str) -> pathlib.Path:
  """Downloads a repository's files and returns their folder in the Hub's cache.

  Args:
    name: `hf-hub:OWNER/NAME`, or `hf-hub:OWNER/NAME@REVISION` with a branch,
      tag or commit.

  Raises:
    UserError: If the name is not of this form, or the files cannot be
      downloaded.
  """
  import huggingface_hub  # Importing it takes longer than reading a file.

  repository, revision = parse_name(name)
  try:
    folder = huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=list(FILES)
    )
  except Exception as error:  # Hub, network or disk.
    raise UserError(f'{name} cannot be fetched ({reason(error)})') from error
  folder = pathlib.Path(folder)
  missing = [file for file in FILES if not (folder / file).exists()]
  if missing:
    raise UserError(f'{name} has no {" and no ".join(missing)}')
  return folder


def parse_name(name: str) -> tuple[str, str | None]:
  """Returns OWNER/NAME and the revision, which is None if not given.

  Raises:
    UserError: If `name` is not the name of a repository.
  """
  match = _NAME.fullmatch(name.removeprefix(PREFIX))
  if not match:
    raise UserError(
        f'{name} does not name a repository: must be '
        f'{PREFIX if name.startswith(PREFIX) else ""}OWNER/NAME[@REVISION]'
    )
  repository, revision = match.groups()
  return repository, revision


def reason(error: Exception) -> str:
  """Returns the first two lines of an error, or its type if it has none.

  The Hub's library has the status first, then what is wrong.
  """
  said = str(error).strip().removeprefix('Got: ')
  lines = filter(None, map(str.strip, said.split('\n')))
  lines = [line for line in lines if not line.startswith('Request ID')]
  return ' '.join(lines[:2]) or type(error).__name__
