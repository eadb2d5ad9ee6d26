"""The Hugging Face Hub: downloads `hf-hub:OWNER/NAME[@REVISION]`, uploads."""

from collections.abc import Iterator
import contextlib
import pathlib
import re

from gswinrmt_jax.errors import UserError

PREFIX = 'hf-hub:'  # as in timm
_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
_TAG = re.compile(r'(?!HEAD$|refs/)\w[\w-]*(?:[./]\w[\w-]*)*(?<!\.lock)')
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
  library = _library(name)
  try:
    folder = library.snapshot_download(
        repository, revision=revision, allow_patterns=list(_FILES)
    )
  except Exception as error:  # Hub, network or disk.
    raise UserError(f'{name} cannot be fetched ({_reason(error)})') from error
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
  api = _library(repository).HfApi(library_name='gswinrmt_jax')
  failed = f'{repository} cannot be uploaded'
  taken = set()
  with _explained(failed):
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


def check_tag(tag: str) -> None:
  """Refuses a tag of a form that Git does not accept.

  Raises:
    UserError: If `tag` is not a name such as v1.0.
  """
  if not _TAG.fullmatch(tag):
    raise UserError(
        f'--revision is {tag!r}: must be a name such as v1.0, of letters, '
        "digits, '_' and '-', with '.' or '/' between them"
    )


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


def _library(name):
  try:
    import huggingface_hub
  except ImportError as error:
    raise UserError(
        f"{name} needs huggingface_hub: pip install 'gswinrmt_jax[hub]'"
    ) from error
  return huggingface_hub


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
  """Turns errors of an upload into a `UserError` that begins with `what`."""
  try:
    yield
  except Exception as error:  # Hub, network, or a token without write access.
    response, advice = getattr(error, 'response', None), ''
    if getattr(response, 'status_code', None) in (401, 403):
      advice = ': `hf auth login` stores a token that may write there'
    raise UserError(f'{what} ({_reason(error)}){advice}') from error


def _reason(error):
  return str(error).strip().split('\n')[0] or type(error).__name__
