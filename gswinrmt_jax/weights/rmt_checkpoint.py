"""Reads PyTorch checkpoints of the released RMT and recognises their model."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import re
from typing import Any

import ml_dtypes
import numpy as np

from gswinrmt_jax.data import imagenet
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory, named
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.models.dense import detector as detector_lib
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import state_dict, torch_file

_RELEASED = (
    *('rmt_t', 'rmt_s', 'rmt_b', 'rmt_l'),
    *('rmt_s_tl', 'rmt_b_tl', 'rmt_l_tl'),
)
# Entries in which training scripts store the weights, the preferred one first.
_WRAPPERS = ('model', 'state_dict', 'model_ema', 'state_dict_ema', 'module')
_BACKBONE = 'backbone.'
_MAX_DEPTH = 4
# Array that only this decode head has -> the head.
_DECODE_HEADS = {
    'decode_head.scale_heads.0.0.conv.weight': 'fpn',
    'decode_head.fpn_bottleneck.conv.weight': 'uper',
}
# Array that only this detector has -> `create_detector`'s head.
_DETECTORS = {
    'bbox_head.retina_cls.weight': 'retina',
    'roi_head.mask_head.conv_logits.weight': 'mask',
    'roi_head.mask_head.0.conv_logits.weight': 'cascade',
}
# Attribute of a detector's head -> an array that has it as its first axis.
# A cascade has a number after 'roi_head.bbox_head' and 'roi_head.mask_head'.
_DETECTOR_SIZES = {
    'channels': 'neck.fpn_convs.0.conv.weight',
    'tower_channels': 'bbox_head.cls_convs.0.conv.weight',
    'rpn_channels': 'rpn_head.rpn_conv.weight',
    'conv_channels': 'roi_head.bbox_head.shared_convs.0.conv.weight',
    'linear_channels': 'roi_head.bbox_head.shared_fcs.0.weight',
    'mask_channels': 'roi_head.mask_head.convs.0.conv.weight',
}
_TOWER = re.compile(r'bbox_head\.cls_convs\.\d+\.conv\.weight')
_ROUND = 32  # Released detectors round sides up to a multiple of it.
# Preprocessing of the release. A segmenter's image size is that of its training
# crops, a detector's the largest within the bounds, rounded up.
_IMAGES = {
    'classification': {
        'image_size': imagenet.IMAGE_SIZE,
        'crop': imagenet.CROP,
    },
    'segmentation': {'image_size': (512, 512), 'fit_within': (2048, 512)},
    'detection': {'image_size': (800, 1344), 'fit_within': (1333, 800)},
}
_BLOCK = re.compile(r'layers\.([0-3])\.blocks\.(\d{1,4})\.')
# The fields that distinguish the released models.
_SIZES = ('widths', 'depths', 'num_heads', 'mlp_ratios')


@dataclasses.dataclass(frozen=True)
class RMTCheckpoint:
  """The contents of a PyTorch file.

  Attributes:
    where: Entry of the file that holds the weights; '' for the top level.
    card: The model, from a card next to the file or by `recognise`.
    match: The arrays that fit the model, and the names of all others.
    others: Names of arrays of other parts, such as the neck of an unknown
      detector.
  """

  where: str
  card: card_lib.Card
  match: state_dict.Match
  others: list[str]


def read(
    path: pathlib.Path,
    *,
    key: str | None = None,
    full_stages: Sequence[int] | None = None,
) -> RMTCheckpoint:
  """Reads a file of `torch.save`.

  Args:
    path: The file; a card next to it (`config.json`) says which model it is.
    key: As in `unwrap`.
    full_stages: As in `recognise`; takes precedence over a card's.

  Raises:
    UserError: If the file cannot be read or is not an RMT.
  """
  contents = torch_file.read(path)
  where, arrays, others = unwrap(contents, key)
  card = card_lib.read(path.with_name(card_lib.FILE))
  try:
    if card is None:
      card = recognise(arrays, full_stages, _class_names(contents))
    elif full_stages is not None:
      fields = {**card.fields, 'full_stages': tuple(full_stages)}
      card = dataclasses.replace(card, fields=fields)
    match = state_dict.match_state_dict(arrays, card.make_model())
  except (UserError, ValueError) as error:
    raise UserError(f'{path}: {error}') from error
  return RMTCheckpoint(where, card, match, others)


def unwrap(
    loaded: Any, key: str | None = None
) -> tuple[str, dict[str, np.ndarray], list[str]]:
  """Finds the state dict in the object that a checkpoint file holds.

  Names may begin with anything, as 'module.', 'model.' or '_orig_mod.': the
  prefix is what precedes the names of RMT's blocks.

  Args:
    loaded: The object.
    key: Entry that holds the weights, such as 'model_ema', 'state_dict/ema' or,
      by a prefix of names, 'ema'. None takes the first of 'model', 'state_dict'
      and the other usual entries that is there.

  Returns:
    The entry where it was found ('' for the top level); the arrays of the
    classifier, segmenter, detector or backbone, without the prefix; and the
    names of other arrays (neck and heads of other models), which are left out.

  Raises:
    UserError: If there are no arrays, no entry `key`, or several models.
  """
  where = []
  top = loaded
  for entry in key.split('/') if key else ():
    loaded = _entry(loaded, entry)
    where.append(entry)
  for _ in range(_MAX_DEPTH):  # a crafted file can contain itself
    wrappers = [name for name in _WRAPPERS if _is_mapping(loaded, name)]
    if not wrappers:
      break
    where.append(wrappers[0])
    loaded = loaded[wrappers[0]]
  arrays = {
      name: value
      for name, value in (loaded if isinstance(loaded, Mapping) else {}).items()
      if isinstance(name, str) and isinstance(value, np.ndarray)
  }
  if not arrays:
    entries = top if isinstance(top, Mapping) else {}
    names = [ascii(n[:40])[1:-1] for n in entries if isinstance(n, str)][:10]
    wanted = f'no entry {key}' if key else 'no weights'
    raise UserError(
        f'{wanted} in the checkpoint (entries: {", ".join(names) or "none"})'
    )
  found = (name[: m.start()] for name in arrays if (m := _BLOCK.search(name)))
  prefix, *more = sorted(set(found)) or ['']
  if prefix and more:
    paths = ('/'.join([*where, p.removesuffix('.')]) for p in (prefix, *more))
    names = ', '.join(ascii(path[-40:])[1:-1] for path in paths)
    raise UserError(
        'the checkpoint has several models: choose one by `gswinrmt convert '
        f'--key`, of {names}'
    )
  whole = prefix.removesuffix(_BACKBONE)
  inside = _below(whole, arrays)
  if _known(_DECODE_HEADS, inside) or _known(_DETECTORS, inside):
    prefix = whole
  others = [name for name in arrays if not name.startswith(prefix)]
  return '/'.join(where), _below(prefix, arrays), others


def _entry(loaded, name):
  """Returns an entry, or the arrays whose names begin with it and a dot."""
  if _is_mapping(loaded, name):
    return loaded[name]
  names = loaded if isinstance(loaded, Mapping) else {}
  return _below(f'{name}.', {k: v for k, v in names.items() if type(k) is str})


def _is_mapping(loaded, name):
  return isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping)


def recognise(
    arrays: Mapping[str, np.ndarray],
    full_stages: Sequence[int] | None = None,
    class_names: Sequence[str] = (),
) -> card_lib.Card:
  """Recognises the model by the names and shapes of its arrays.

  The preprocessing is taken to be that of the release.

  Args:
    arrays: Arrays by their released names.
    full_stages: Stages that attend over all pairs of tokens. No array shows
      them, so a model of another size than the released ones needs them.
    class_names: Names of the classes of a segmenter or detector; used if there
      is one for each.

  Raises:
    UserError: If the model is not an RMT, or has another size and its heads or
      `full_stages` are unknown.
  """
  dense = None
  try:
    if head := _known(_DECODE_HEADS, arrays):
      dense, num_classes = _segmenter(head, arrays)
    elif head := _known(_DETECTORS, arrays):
      dense, num_classes = _detector(head, arrays)
    fields, own = _sizes(_below(_BACKBONE, arrays) if dense else arrays)
    num_classes = num_classes if dense else own
  except KeyError as error:
    raise UserError(
        f'the checkpoint is not an RMT: it has no {error}'
    ) from None
  except (IndexError, TypeError, ValueError, ZeroDivisionError) as error:
    raise UserError(
        'the checkpoint is not an RMT: its arrays have other shapes'
    ) from error
  if full_stages is not None:
    fields['full_stages'] = tuple(full_stages)
  name = _name(fields)
  if dense is None and num_classes == imagenet.NUM_CLASSES:
    class_names = imagenet.classes()
  images = dict(_IMAGES[create.task(dense)])
  if fields.get('dense_head'):
    images['crop'] = imagenet.TOKEN_LABEL_CROP
  return card_lib.Card(
      name=name,
      fields=factory.resolve(name, fields),
      num_classes=num_classes,
      class_names=class_names if len(class_names) == num_classes else (),
      dense=dense,
      mean=imagenet.MEAN,
      std=imagenet.STD,
      **images,
  )


def _name(fields):
  """Returns the released model of these sizes, 'rmt_t' if there is none."""

  def changed(name):
    arch = named.MODELS[name]
    return {k for k, value in fields.items() if value != getattr(arch, k)}

  same = [name for name in _RELEASED if not changed(name) & set(_SIZES)]
  if same:  # models with and without a dense head have the same sizes
    return min(same, key=lambda name: len(changed(name)))
  if 'num_heads' in fields and 'full_stages' in fields:
    return 'rmt_t'
  unknown = (
      f'an RMT of widths {fields["widths"]} and depths {fields["depths"]} is '
      f'none of {", ".join(_RELEASED)}'
  )
  if 'num_heads' not in fields:
    raise UserError(
        f'{unknown}, and without its buffers (layers.0.Relpos.decay) its heads '
        'are not known'
    )
  raise UserError(
      f'{unknown}; say which of its stages attend over all pairs of tokens, '
      'by `gswinrmt convert --full-stages 3,4`'
  )


def _below(prefix, arrays):
  """Returns the arrays whose names begin with a prefix, without it."""
  return {
      name.removeprefix(prefix): array
      for name, array in arrays.items()
      if name.startswith(prefix)
  }


def _known(heads, arrays):
  """Returns the head of a dense model; None for other models."""
  return next((heads[name] for name in heads if name in arrays), None)


def _segmenter(head, arrays):
  """Returns `Card.dense` and the number of classes."""
  shapes = {name: array.shape for name, array in arrays.items()}
  neck = 0
  classes, channels, _, _ = shapes['decode_head.conv_seg.weight']
  auxiliary = shapes.get('auxiliary_head.conv_seg.weight', (classes, 0))
  if head == 'fpn':
    neck = shapes['neck.fpn_convs.0.conv.weight'][0]
  return {
      'head': head,
      'channels': channels,
      'neck_channels': neck,
      'auxiliary_channels': auxiliary[1],
  }, classes


def _detector(head, arrays):
  """Returns `Card.dense` and the number of classes.

  No array shows scores, counts of boxes or sizes of anchors: those of the
  release are taken.
  """

  def first(name):
    if head == 'cascade':
      name = re.sub(r'roi_head\.\w+', r'\g<0>.0', name)
    return arrays[name].shape[0]

  own = detector_lib.head_fields(head)
  if head != 'cascade':
    own.pop('conv_channels', None)  # of a cascade only
  found = {k: first(name) for k, name in _DETECTOR_SIZES.items() if k in own}
  if head == 'retina':
    found['tower_depth'] = sum(map(bool, map(_TOWER.fullmatch, arrays)))
    shapes = first('bbox_head.retina_reg.weight') // 4
    classes, rest = divmod(first('bbox_head.retina_cls.weight'), shapes)
    if rest:
      raise ValueError('classes of unequal numbers of anchors')
  else:
    classes = first('roi_head.bbox_head.fc_cls.weight') - 1  # background
  return {'head': head, 'round_extents': _ROUND, **own, **found}, classes


def _sizes(arrays):
  """Returns the fields and the number of classes, from shapes and decays."""
  depths = [0, 0, 0, 0]
  for name in arrays:
    if match := _BLOCK.match(name):
      stage, index = map(int, match.groups())
      depths[stage] = max(depths[stage], index + 1)
  shapes = {name: array.shape for name, array in arrays.items()}
  blocks = [f'layers.{stage}.blocks.0.' for stage in range(4)]
  widths = [shapes[f'{block}pos.conv.weight'][0] for block in blocks]
  hidden = [shapes[f'{block}ffn.fc1.weight'][0] for block in blocks]
  fields = {
      'widths': tuple(widths),
      'depths': tuple(depths),
      'mlp_ratios': tuple(
          inner / width for inner, width in zip(hidden, widths, strict=True)
      ),
      'layer_scale': tuple(
          1e-6 if f'{block}gamma_1' in shapes else 0.0 for block in blocks
      ),
      'ffn_norm': f'{blocks[0]}ffn.ffn_layernorm.weight' in shapes,
      'feature_norm': 'extra_norms.0.weight' in shapes,
  }
  # The decays are buffers, and some scripts save only parameters.
  decays = [arrays.get(f'layers.{stage}.Relpos.decay') for stage in range(4)]
  if all(decay is not None for decay in decays):
    fields['num_heads'] = tuple(len(decay) for decay in decays)
    fields['decay_ranges'] = tuple(_decay_range(decay) for decay in decays)
  if 'proj.weight' in shapes:
    fields['projection'] = shapes['proj.weight'][0]
  if len(shapes.get('head.weight', ())) != 2:
    return fields, 0
  fields['head'] = 'proj' if 'proj.weight' in shapes else 'norm'
  fields['dense_head'] = len(shapes.get('aux_head.weight', ())) == 2
  return fields, shapes['head.weight'][0]


def _decay_range(log_decay: np.ndarray) -> float:
  """Solves `gamma_n = 1 - 2 ** (-2 - r n / N)` (RMT, eq. 8) for `r`.

  The last head, n = N - 1, gives the most digits: half precision two decimals,
  bfloat16 one; single precision is rounded to three.
  """
  heads = len(log_decay)
  if heads == 1:
    return 4.0  # A single head has gamma = 0.75 whatever the range.
  with np.errstate(all='ignore'):  # Bad values are refused later.
    gamma = np.exp(np.float64(log_decay[-1]))
    spread = float(-2 - np.log2(1 - gamma)) * heads / (heads - 1)
  digits = -math.log10(ml_dtypes.finfo(log_decay.dtype).eps)
  return round(spread, min(3, int(digits) - 1))


def _class_names(contents):
  """Returns the names that mmsegmentation stores, () if there are none."""
  meta = contents.get('meta') if isinstance(contents, Mapping) else None
  names = meta.get('CLASSES') if isinstance(meta, Mapping) else None
  is_list = isinstance(names, (list, tuple))
  if not is_list:
    return ()
  # One name of its ADE20K ends with a blank.
  return tuple(name.strip() for name in names if isinstance(name, str))
