"""Weights of the released RMT, from a PyTorch file to a model's variables."""

from collections.abc import Sequence
import dataclasses
import pathlib

from gswinrmt_jax.data import imagenet
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import recognition, state_dict, torch_file


@dataclasses.dataclass(frozen=True)
class Released:
  """What a PyTorch file has.

  Attributes:
    where: The entry of the file, '' for the top.
    card: The model. Where no card lies beside the file, images are taken to be
      prepared as ImageNet's are.
    match: Its arrays, and what does not fit.
    others: Arrays of other parts, such as a detector's neck.
  """

  where: str
  card: card_lib.Card
  match: state_dict.Match
  others: int


def read(
    path: pathlib.Path,
    *,
    key: str | None = None,
    full_stages: Sequence[int] | None = None,
) -> Released:
  """Reads a file of `torch.save`.

  Args:
    path: The file; a card beside it (`config.json`) says which model it is.
    key: Entry of the file to take; None finds it.
    full_stages: Of a model without a card that is none of the released, see
      `recognition.recognise`.

  Raises:
    UserError: If the file cannot be read or is no RMT.
  """
  where, arrays, others = recognition.unwrap(torch_file.read(path), key)
  card = _card_beside(path)
  try:
    if card is None:
      card = _imagenet(recognition.recognise(arrays, full_stages))
    match = state_dict.match_state_dict(arrays, card.make_model())
  except ValueError as error:
    raise UserError(f'{path}: {error}') from error
  return Released(where, card, match, others)


def _card_beside(path):
  beside = path.with_name(card_lib.FILE)
  if not beside.exists():
    return None
  fields = card_lib.read(beside)
  # Any other library's config.json may lie there.
  if not card_lib.is_card(fields):
    return None
  return card_lib.from_dict(fields, str(beside))


def _imagenet(found):
  named = found.num_classes == imagenet.NUM_CLASSES
  return card_lib.Card(
      name=found.name,
      fields=factory.resolve(found.name, found.fields),
      num_classes=found.num_classes,
      class_names=imagenet.classes() if named else (),
      image_size=imagenet.IMAGE_SIZE,
      mean=imagenet.MEAN,
      std=imagenet.STD,
      crop=imagenet.CROP,
  )
