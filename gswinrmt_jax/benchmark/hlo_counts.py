"""What a compiled program does: launches, bytes, collectives, from its text."""

from collections import Counter
import dataclasses

from gswinrmt_jax.benchmark import hlo_text

# What starts nothing on the device: names, views, control flow (whose bodies
# are counted themselves), and the second halves of asynchronous pairs.
_FREE = {
    'add-dependency',
    'after-all',
    'bitcast',
    'call',
    'conditional',
    'constant',
    'get-tuple-element',
    'opt-barrier',
    'parameter',
    'partition-id',
    'replica-id',
    'tuple',
    'while',
}
_COLLECTIVES = (
    'all-gather',
    'all-reduce',
    'all-to-all',
    'collective-broadcast',
    'collective-permute',
    'reduce-scatter',
)
# Operations that read as much of their first operand as they return.
_SLICES = {'dynamic-slice', 'gather', 'slice'}
_VIEWS = {'bitcast', 'get-tuple-element', 'reshape'}
# Of which a slice needs no more than the same slice of the operands.
_ELEMENTWISE = {'add', 'convert', 'divide', 'maximum', 'multiply', 'subtract'}
_BRANCHING = {'call', 'conditional', 'while'}


@dataclasses.dataclass
class Counts:
  """Sums over a program; what a loop does counts as often as it is done.

  Attributes:
    kernels: Launches by kind. A launch is an instruction of the entry
      computation, or of a loop's or a branch's, that the device executes as
      one operation: a fusion, a library call, a copy, or any other operation
      that stands alone. Parameters, constants, tuples and bitcasts start
      nothing. Kinds: 'loop', 'reduce' (and transposes: fusions of kind
      `kInput`) and 'triton' fusions, 'cudnn', 'cublas', 'copy',
      'collective', else the operation's or the call's own name. A library call,
      and a reduction of several stages that is one instruction, may start more
      than one kernel; a program that is tuned on a device may choose otherwise.
    phases: Launches of the 'forward' and 'backward' pass and of the 'rest'
      (optimiser, metrics), by the name that JAX gave the operation.
    bytes_read: Bytes of the operands of all launches. Of an operand of which
      a fusion takes slices only, at once or behind elementwise operations,
      the slices.
    bytes_written: Bytes of their results. Of a result that is updated in
      place, the update.
    collectives: Launches of each collective operation.
    unknown_loops: Loops whose trip count is not known: counted once.
  """

  kernels: Counter = dataclasses.field(default_factory=Counter)
  phases: Counter = dataclasses.field(default_factory=Counter)
  bytes_read: int = 0
  bytes_written: int = 0
  collectives: Counter = dataclasses.field(default_factory=Counter)
  unknown_loops: int = 0

  @property
  def total(self) -> int:
    """All launches."""
    return self.kernels.total()

  @property
  def num_bytes(self) -> int:
    """Read and written."""
    return self.bytes_read + self.bytes_written


def count(text: str) -> Counts:
  """Counts the program of `compiled.as_text()`.

  Of the branches of a conditional all are counted, though one is taken.

  Raises:
    ValueError: If the text is none.
  """
  module = hlo_text.parse(text)
  counts = Counts()
  _add_computation(module, module.entry, 1, counts)
  return counts


def _add_computation(module, name, times, counts):
  computation = module.computations[name]
  for instruction in computation.values():
    opcode = instruction.opcode
    if opcode in _BRANCHING:
      trips = times
      if opcode == 'while':
        known = instruction.attribute(r'"known_trip_count":\{"n":"(\d+)"')
        counts.unknown_loops += not known
        trips = times * int(known or 1)
      for called in instruction.called:
        _add_computation(module, called, trips, counts)
    elif opcode not in _FREE and not opcode.endswith(('-done', '-update')):
      _add_launch(module, computation, instruction, times, counts)


def _add_launch(module, computation, instruction, times, counts):
  kind = _kind(instruction)
  counts.kernels[kind] += times
  counts.phases[_phase(instruction)] += times
  if kind == 'collective':
    counts.collectives[_base(instruction.opcode)] += times
  read, written = _traffic(module, computation, instruction)
  counts.bytes_read += times * read
  counts.bytes_written += times * written


def _base(opcode):
  return opcode.removesuffix('-start')


def _kind(instruction):
  opcode = _base(instruction.opcode)
  if opcode in _COLLECTIVES:
    return 'collective'
  if opcode == 'fusion':
    if '"kind":"__triton' in instruction.attributes:
      return 'triton'
    kind = instruction.attribute(r'\bkind=k(\w+)').lower()
    return {'input': 'reduce'}.get(kind, kind)
  if opcode == 'custom-call':
    target = instruction.attribute(r'custom_call_target="([^"]*)"')
    for library in ('cudnn', 'cublas'):
      if target.startswith(f'__{library}$'):
        return library
    return target
  return opcode


def _phase(instruction):
  name = instruction.attribute(r'op_name="([^"]*)"')
  if 'transpose(' in name:
    return 'backward'
  return 'forward' if 'jvp(' in name else 'rest'


def _traffic(module, computation, instruction):
  """Returns bytes read and written at the boundary of one launch."""
  sizes = [computation[name].num_bytes for name in instruction.operands]
  written = instruction.num_bytes
  if instruction.opcode == 'fusion':
    (called,) = instruction.called
    return _fusion_traffic(module.computations[called], sizes, written)
  if instruction.opcode in _SLICES:
    return written + sum(sizes[1:]), written
  if instruction.opcode == 'dynamic-update-slice':
    return sum(sizes[1:]), sizes[1]
  return sum(sizes), written


def _fusion_traffic(body, sizes, written):
  users = {name: [] for name in body}
  for instruction in body.values():
    for operand in dict.fromkeys(instruction.operands):
      users[operand].append(instruction)
  read = 0
  for instruction in body.values():
    if instruction.opcode == 'parameter':
      whole = sizes[int(instruction.literal)]
      read += min(whole, _taken(instruction, users))
  root = next(i for i in body.values() if i.root)
  for name in root.operands if root.opcode == 'tuple' else [root.name]:
    update = _through_views(body, name)
    if update.opcode == 'dynamic-update-slice':
      part = body[update.operands[1]].num_bytes
      written -= update.num_bytes - part
  return read, written


def _through_views(body, name):
  while body[name].opcode in _VIEWS:
    name = body[name].operands[0]
  return body[name]


def _taken(instruction, users):
  """Returns how many bytes of a value its users read, slices as slices."""
  taken = 0
  for user in users[instruction.name]:
    first = user.operands[0] == instruction.name
    if user.opcode in _SLICES and first:
      taken += user.num_bytes
    elif user.root:
      return instruction.num_bytes
    elif user.opcode in _VIEWS:
      taken += _taken(user, users)
    elif user.opcode in _ELEMENTWISE:
      share = _taken(user, users) / user.num_bytes
      taken += round(share * instruction.num_bytes)
    elif user.opcode == 'dynamic-update-slice' and first:
      continue  # in place: what is not updated is not read
    else:
      return instruction.num_bytes
  return taken
