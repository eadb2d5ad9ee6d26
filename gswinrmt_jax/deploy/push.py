"""Uploads the weights of a run to the Hugging Face Hub."""

import pathlib
import tempfile

from gswinrmt_jax.deploy import export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import hub
from gswinrmt_jax.weights.load import Weights


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
      valid name, the repository has the tag already, or the upload fails.
  """
  terminal = Terminal()
  if weights.recipe is None:
    raise UserError(
        f'{weights.origin} is not a run: push uploads only weights that you '
        'trained (released RMT weights have no licence that allows it)'
    )
  given, (repository, revision) = repository, hub.check_name(repository)
  if revision:
    raise UserError(f'{given}: name the tag by --revision')
  if tag:
    hub.check_tag(tag)
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place) / 'weights'
    export.export(
        weights, 'safetensors', folder, terminal, license=license, note=note
    )
    hub.upload(folder, repository, tag=tag, private=private)
  name = f'{hub.PREFIX}{repository}' + (f'@{tag}' if tag else '')
  terminal.say(f'Uploaded: gswinrmt_jax.load_model({name!r})')
