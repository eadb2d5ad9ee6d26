"""Uploads the weights of a run to the Hugging Face Hub."""

from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import re
import tempfile

import huggingface_hub

from gswinrmt_jax.deploy import export, model_card
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import hub
from gswinrmt_jax.weights.load import Weights

# Tags that Git accepts, without spaces.
_TAG = re.compile(r'(?!HEAD$|refs/)\w[\w-]*(?:[./]\w[\w-]*)*(?<!\.lock)')


def push(
    weights: Weights,
    repository: str,
    *,
    license: str = '',
    note: str = '',
    tag: str = '',
    private: bool = False,
) -> None:
  """Uploads model.safetensors, config.json and README.md.

  Args:
    weights: The weights of a run.
    repository: OWNER/NAME or hf-hub:OWNER/NAME; created if it does not exist.
    license: Licence for the model card.
    note: Note for the model card.
    tag: A tag for this revision; '' sets none.
    private: Whether a newly created repository is private.

  Raises:
    UserError: If the weights are not from a run, `repository` or `tag` is not a
      valid name, the repository holds another library's model or has the tag
      already, or the upload fails.
  """
  terminal = Terminal()
  if weights.recipe is None:
    raise UserError(
        f'{weights.origin} is not a run: push uploads only weights that you '
        'trained (released RMT weights have no licence that allows it)'
    )
  given, (repository, revision) = repository, hub.parse_name(repository)
  if revision:
    raise UserError(f'{given}: name the tag by --revision')
  if tag and not _TAG.fullmatch(tag):
    raise UserError(
        f'--revision is {tag!r}: must be a name such as v1.0, of letters, '
        "digits, '_' and '-', with '.' or '/' between them"
    )
  # The path of class folders means nothing on another machine.
  figures = dict(weights.card.figures)
  if pathlib.Path(figures.get('data', '')).is_absolute():
    del figures['data']
  card = dataclasses.replace(weights.card, figures=figures)
  weights = dataclasses.replace(weights, card=card)
  source = f'{hub.PREFIX}{repository}' + (f'@{tag}' if tag else '')
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place) / 'weights'
    export.export(
        weights,
        'safetensors',
        folder,
        terminal,
        license=license,
        note=note,
        source=source,
    )
    _upload(folder, repository, tag, private)
  terminal.say(f'Uploaded: gswinrmt_jax.load_model({source!r})')


def _upload(folder, repository, tag, private):
  """Uploads a folder; creates the repository and sets the tag, if any."""
  api = huggingface_hub.HfApi(library_name=model_card.LIBRARY)
  failed = f'{repository} cannot be uploaded'
  taken = set()
  with _explained(failed):
    # None leaves it to the owner's setting; of a repository that is there
    # already, `private` is ignored.
    api.create_repo(repository, private=private or None, exist_ok=True)
    there = api.model_info(repository)
    if tag:
      refs = api.list_repo_refs(repository)
      taken = {ref.name for ref in (*refs.tags, *refs.branches)}
  if there.library_name not in (None, model_card.LIBRARY):
    raise UserError(
        f'{repository} holds a model of {there.library_name}: choose another '
        'repository'
    )
  if private and not there.private:
    raise UserError(
        f'{repository} is there already, and public: leave out --private, or '
        'make it private first'
    )
  if tag in taken:
    raise UserError(
        f'{repository} has {tag} already: choose another --revision'
    )
  with _explained(failed):
    commit = api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        allow_patterns=[*hub.FILES, model_card.FILE],
        commit_message='Upload weights of gswinrmt_jax',
    )
  if tag:
    with _explained(f'{repository} is uploaded, but cannot be tagged {tag}'):
      api.create_tag(repository, tag=tag, revision=commit.oid)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
  """Turns errors of an upload into a `UserError` that begins with `what`."""
  try:
    yield
  except Exception as error:  # Hub, network, or a token without write access.
    response, advice = getattr(error, 'response', None), ''
    if getattr(response, 'status_code', None) in (401, 403):
      advice = ': `hf auth login` stores a token that may write there'
    raise UserError(f'{what} ({hub.reason(error)}){advice}') from error
