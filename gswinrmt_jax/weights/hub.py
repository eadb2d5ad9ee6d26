"""The Hugging Face Hub: downloads `hf-hub:OWNER/NAME[@REVISION]`, uploads."""

from collections.abc import Iterator
import contextlib
import pathlib
import re

from gswinrmt_jax.errors import UserError

PREFIX = 'hf-hub:'  # as in timm
_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
# Tags that Git accepts, such as v1.0.
TAG = re.compile(r'(?!HEAD$|refs/)\w[\w-]*(?:[./]\w[\w-]*)*(?<!\.lock)')
# The files that loading needs.
_FILES = ('config.json', 'model.safetensors')


def fetch(name: str) -> pathlib.Path:
  """Downloads a repository's files and returns their folder in the Hub's cache.

  Args:
    name: `hf-hub:OWNER/NAME`, or `hf-hub:OWNER/NAME@REVISION` with a branch,
      tag or commit.

  Raises:
    UserError: If the name is not of this form, huggingface_hub is not
      installed, or the files cannot be downloaded.
  """
  repository, revision = check_name(name)
  with _explained(f'{name} cannot be fetched'):
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=list(_FILES)
    )
  folder = pathlib.Path(folder)
  missing = [file for file in _FILES if not (folder / file).exists()]
  if missing:
    raise UserError(f'{name} has no {" and no ".join(missing)}')
  return folder


def upload(
    folder: pathlib.Path, repository: str, *, tag: str = '', private: bool
) -> None:
  """Uploads a folder of exported weights, with its model card.

  Args:
    folder: Folder written by `gswinrmt export --format safetensors`.
    repository: OWNER/NAME; created if it does not exist.
    tag: A tag for the new revision; '' sets none.
    private: Whether a newly created repository is private.

  Raises:
    UserError: If huggingface_hub is not installed, the repository has this tag
      already, or the upload fails.
  """
  failed = f'{repository} cannot be uploaded'
  taken = set()
  with _explained(failed):
    import huggingface_hub

    api = huggingface_hub.HfApi(library_name='gswinrmt_jax')
    api.create_repo(repository, private=private, exist_ok=True)
    if tag:
      refs = api.list_repo_refs(repository)
      taken = {ref.name for ref in (*refs.tags, *refs.branches)}
  if tag in taken:
    raise UserError(
        f'{repository} has {tag} already: choose another --revision'
    )
  with _explained(failed):
    commit = api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        allow_patterns=[*_FILES, 'README.md'],
        commit_message='Upload weights of gswinrmt_jax',
    )
  if tag:
    with _explained(f'{repository} is uploaded, but cannot be tagged {tag}'):
      api.create_tag(repository, tag=tag, revision=commit.oid)


def check_name(name: str) -> tuple[str, str | None]:
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


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
  """Turns errors into a `UserError` that begins with `what`."""
  try:
    yield
  except Exception as error:  # Library, network, disk, or a token's rights.
    response, advice = getattr(error, 'response', None), ''
    if isinstance(error, ImportError):
      advice = ": pip install 'gswinrmt_jax[hub]'"
    elif getattr(response, 'status_code', None) in (401, 403):
      advice = ': `hf auth login` stores a token that may do that'
    said = str(error).strip().split('\n')[0] or type(error).__name__
    raise UserError(f'{what} ({said}){advice}') from error
