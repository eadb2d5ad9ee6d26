"""Reads the text of a compiled program (HLO) into instructions."""

from collections.abc import Iterator
import dataclasses
import math
import re

_BITS = re.compile(r'^[a-z]+?(\d+)')
_ARRAY = re.compile(r'\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]')
_COMMENT = re.compile(r'/\*.*?\*/')
_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = (.*)$')
_OPERAND = re.compile(r'%([\w.\-]+(?:#\d+)?)')  # `%a#1`: part 1 of a tuple
_CALLED = re.compile(r'\b(?:calls|to_apply|body|condition)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'\bbranch_computations=\{([^}]*)\}')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: Without the percent sign.
    shape: Its type, as written: `bf16[2,3]{1,0}`, or a tuple in parentheses.
    opcode: Such as 'fusion'.
    operands: Names of its operands, in order.
    attributes: What stands behind the operands.
    literal: What stands in the parentheses: the operands, or a number.
    root: Whether it is what the computation returns.
  """

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str
  literal: str
  root: bool

  @property
  def num_bytes(self) -> int:
    """Bytes of the result; of all parts, if it is a tuple."""
    return shape_bytes(self.shape)

  @property
  def called(self) -> tuple[str, ...]:
    """Names of the computations that it runs, in the order written."""
    names = _CALLED.findall(self.attributes)
    for branches in _BRANCHES.findall(self.attributes):
      names += [name.strip(' %') for name in branches.split(',')]
    return tuple(names)

  def attribute(self, pattern: str) -> str:
    """Returns the one group of a pattern in the attributes; '' if none."""
    found = re.search(pattern, self.attributes)
    return found.group(1) if found else ''


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
  """A program.

  Attributes:
    entry: Name of the computation that it starts with.
    computations: By name; each has its instructions by name, in order.
  """

  entry: str
  computations: dict[str, Computation]


def parse(text: str) -> Module:
  """Reads `compiled.as_text()`.

  Raises:
    ValueError: If no computation is marked as the entry.
  """
  entry = ''
  computations = {}
  current = None
  for line in text.splitlines():
    header = _HEADER.match(line)
    if header:
      current = computations.setdefault(header.group(2), {})
      entry = header.group(2) if header.group(1) else entry
      continue
    found = _INSTRUCTION.match(line)
    if found and current is not None:
      instruction = _instruction(*found.groups())
      for name in instruction.operands:
        if '#' in name:
          current.setdefault(name, _part(name, current))
      current[instruction.name] = instruction
  if not entry:
    raise ValueError('This is no text of a program: no computation is ENTRY.')
  return Module(entry, computations)


def _instruction(root, name, rest):
  rest = _COMMENT.sub('', rest)
  end = _closing(rest, 0) + 1 if rest[0] == '(' else rest.index(' ')
  shape, rest = rest[:end], rest[end:].strip()
  start = rest.index('(')
  end = _closing(rest, start)
  literal = rest[start + 1 : end]
  return Instruction(
      name=name,
      shape=shape,
      opcode=rest[:start],
      operands=tuple(_OPERAND.findall(literal)),
      attributes=rest[end + 1 :],
      literal=literal,
      root=bool(root),
  )


def _part(name, computation):
  """What `%name#index` stands for, in full."""
  whole, index = name.split('#')
  return Instruction(
      name=name,
      shape=_parts(computation[whole].shape)[int(index)],
      opcode='get-tuple-element',
      operands=(whole,),
      attributes=f', index={index}',
      literal=f'%{whole}',
      root=False,
  )


def _parts(shape):
  """Splits the type of a tuple at its outermost commas."""
  parts, depth = [''], 0
  for letter in shape[1:-1]:
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += letter
  return [part.strip() for part in parts]


def _closing(text, start):
  """Returns where the parenthesis that opens at `start` closes."""
  depth = 0
  for index in range(start, len(text)):
    depth += (text[index] == '(') - (text[index] == ')')
    if not depth:
      return index
  raise ValueError(f'A parenthesis does not close: {text[start : start + 60]}')


def shape_bytes(shape: str) -> int:
  """Returns the bytes of a type, the parts of a tuple together."""
  return sum(math.prod(extents) * bits for bits, extents in _arrays(shape)) // 8


def _arrays(shape: str) -> Iterator[tuple[int, list[int]]]:
  # Layouts have parentheses of their own, `{1,0:T(8,128)}`, but no brackets.
  for dtype, extents in _ARRAY.findall(shape):
    bits = _BITS.match(dtype)
    width = 8 if dtype == 'pred' else int(bits.group(1)) if bits else 0
    yield width, [int(extent) for extent in extents.split(',') if extent]
