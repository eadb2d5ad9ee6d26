"""Counts what a compiled program does, from its text (HLO)."""

from collections import Counter
import dataclasses
import math
import re

_BITS = re.compile(r'^[a-z]+?(\d+)')
_ARRAY = re.compile(r'\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]')
_COMMENT = re.compile(r'/\*.*?\*/')
_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_OPERAND = re.compile(r'%([\w.\-]+(?:#\d+)?)')  # `%a#1`: part 1 of a tuple
_CALLED = re.compile(r'\b(?:calls|to_apply|body|condition)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'\bbranch_computations=\{([^}]*)\}')

# Instructions that start nothing on the device.
_FREE = set(
    'add-dependency after-all bitcast constant get-tuple-element opt-barrier '
    'parameter partition-id replica-id tuple'.split()
)
_BRANCHING = {'call', 'conditional', 'while'}


@dataclasses.dataclass
class Counts:
  """Sums over a program; the body of a loop counts once per iteration.

  A loop whose trip count is unknown counts once.

  A launch is an instruction that the device executes as one operation: a
  fusion, a library call, a copy, or any other that stands alone. A library
  call or a large reduction may start more than one kernel, and a program
  tuned on a device may choose otherwise.

  Attributes:
    kernels: Launches by kind: 'loop', 'reduce' (and transposes) and 'triton'
      fusions, 'cudnn', 'cublas', or the name of the operation or call.
    bytes_read: Bytes of the operands of all launches, also of an operand that
      a launch reads a slice of.
    bytes_written: Bytes of their results.
  """

  kernels: Counter = dataclasses.field(default_factory=Counter)
  bytes_read: int = 0
  bytes_written: int = 0


def count(text: str) -> Counts:
  """Counts the program of `compiled.as_text()`.

  All branches of a conditional count, though one is taken.

  Raises:
    ValueError: If the text is no program.
  """
  entry, computations = parse(text)
  counts = Counts()
  _add_computation(computations, entry, 1, counts)
  return counts


def _add_computation(computations, name, times, counts):
  computation = computations[name]
  for instruction in computation.values():
    opcode = instruction.opcode
    if opcode in _BRANCHING:
      trips = times
      if opcode == 'while':
        known = instruction.attribute(r'"known_trip_count":\{"n":"(\d+)"')
        trips = times * int(known or 1)
      for called in instruction.called:
        _add_computation(computations, called, trips, counts)
    elif opcode not in _FREE and not opcode.endswith(('-done', '-update')):
      counts.kernels[_kind(instruction)] += times
      operands = (computation[operand] for operand in instruction.operands)
      counts.bytes_read += times * sum(one.num_bytes for one in operands)
      counts.bytes_written += times * instruction.num_bytes


def _kind(instruction):
  opcode = instruction.opcode.removesuffix('-start')
  if opcode == 'fusion':
    if '"kind":"__triton' in instruction.attributes:
      return 'triton'
    kind = instruction.attribute(r'\bkind=k(\w+)').lower()
    return {'input': 'reduce'}.get(kind, kind)
  if opcode == 'custom-call':
    target = instruction.attribute(r'custom_call_target="([^"]*)"')
    library = re.match(r'__(cudnn|cublas)\$', target)
    return library[1] if library else target
  return opcode


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: Without the percent sign.
    shape: As written: `bf16[2,3]{1,0}`, or a tuple in parentheses.
    opcode: Such as 'fusion'.
    operands: Names of the operands, in order.
    attributes: The text after them.
  """

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str

  @property
  def num_bytes(self) -> int:
    """Bytes of the result; of all parts of a tuple."""
    return shape_bytes(self.shape)

  @property
  def called(self) -> tuple[str, ...]:
    """Names of the computations that it runs, in the order written."""
    names = _CALLED.findall(self.attributes)
    for branches in _BRANCHES.findall(self.attributes):
      names += [name.strip(' %') for name in branches.split(',')]
    return tuple(names)

  def attribute(self, pattern: str) -> str:
    """Returns the group of a pattern in the attributes; '' without match."""
    found = re.search(pattern, self.attributes)
    return found[1] if found else ''


def parse(text: str) -> tuple[str, dict[str, dict[str, Instruction]]]:
  """Returns the entry's name and, by name, computations of instructions.

  Raises:
    ValueError: If no computation is marked as the entry.
  """
  entry, computations, current = '', {}, None
  for line in text.splitlines():
    header, found = _HEADER.match(line), _INSTRUCTION.match(line)
    if header:
      current = computations.setdefault(header[2], {})
      entry = header[2] if header[1] else entry
    elif found and current is not None:
      instruction = _instruction(*found.groups())
      for name in instruction.operands:
        if '#' in name:
          current.setdefault(name, _part(name, current))
      current[instruction.name] = instruction
  if not entry:
    raise ValueError('This is no text of a program: no computation is ENTRY.')
  return entry, computations


def _instruction(name, rest):
  rest = _COMMENT.sub('', rest)
  end = _closing(rest, 0) + 1 if rest[0] == '(' else rest.index(' ')
  shape, rest = rest[:end], rest[end:].strip()
  start = rest.index('(')
  end = _closing(rest, start)
  operands = tuple(_OPERAND.findall(rest[start + 1 : end]))
  return Instruction(name, shape, rest[:start], operands, rest[end + 1 :])


def _closing(text, start):
  """Returns where the parenthesis that opens at `start` closes."""
  depth = 0
  for index in range(start, len(text)):
    depth += (text[index] == '(') - (text[index] == ')')
    if not depth:
      return index
  raise ValueError(f'A parenthesis does not close: {text[start : start + 60]}')


def _part(name, computation):
  """Returns what `%name#index` stands for."""
  whole, index = name.split('#')
  parts, depth = [''], 0
  for letter in computation[whole].shape[1:-1]:
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += letter
  shape = parts[int(index)].strip()
  return Instruction(name, shape, 'get-tuple-element', (whole,), '')


def shape_bytes(shape: str) -> int:
  """Returns the bytes of a type, the parts of a tuple together."""
  bits = 0
  # Layouts have parentheses of their own, `{1,0:T(8,128)}`, but no brackets.
  for dtype, extents in _ARRAY.findall(shape):
    found = _BITS.match(dtype)
    width = 8 if dtype == 'pred' else int(found[1]) if found else 0
    bits += width * math.prod(int(n) for n in extents.split(',') if n)
  return bits // 8
