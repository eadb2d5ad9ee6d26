"""Tests that any run file is accepted or gets one clear line."""

import copy
import dataclasses
import json
import pathlib

import fuzz
from hypothesis import given
from hypothesis import strategies as st
import pytest

from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import dataset_record, metrics_log, run_folder, summary

_SPEC = 'digits_rmt:smoke'
_FIELDS = sorted(dict(recipe_files.leaves(recipe_files.load(_SPEC, []))))
_GOLDEN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'
_LEFT_OUT = object()
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 10**40, -(10**30)])
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(['', '\0', 'rmt_t', 'digits', 'train', 'decode', '/']),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def folders(tmp_path):
  """Returns an iterator of new run folders."""
  return (tmp_path / str(number) for number in range(10**9))


def _mutated(fields, changes):
  """Returns the JSON with some of its values replaced or left out."""
  fields = copy.deepcopy(fields)
  for path, value in changes:
    *sections, field = path.split('.')
    here = fields
    for section in sections:
      here = here.get(section) if isinstance(here, dict) else None
    if isinstance(here, dict):
      here[field] = value
      if value is _LEFT_OUT:
        del here[field]
  return fields


_RECIPE = json.loads((_GOLDEN / 'config.json').read_text())
_RECORD = json.dumps({**dataclasses.asdict(datasets.info('digits')), 'crop': 1})
_CHANGES = st.lists(
    st.tuples(
        st.sampled_from((*_FIELDS, 'model', 'data', 'augment', 'a.b', '')),
        _JSON | st.just(_LEFT_OUT),
    ),
    min_size=1,
    max_size=3,
)
_TEXTS = _CHANGES.map(lambda of: json.dumps(_mutated(_RECIPE, of))) | (
    st.text() | _JSON.map(json.dumps)
)


def _lines(name):
  """Returns texts for a file of a run: spans left out, replaced, repeated."""
  path = _GOLDEN / name
  whole = path.read_text() if path.exists() else _RECORD
  other = (
      st.text()
      | _JSON.map(json.dumps)
      | _JSON.map(
          lambda value: json.dumps({'kind': 'epoch', 'step': value, 'epoch': 1})
      )
  )
  return st.builds(
      lambda start, stop, middle: whole[:start] + middle + whole[stop:],
      st.integers(0, len(whole)),
      st.integers(0, len(whole)),
      other,
  )


_FILES = st.one_of(
    st.tuples(st.just('config.json'), _TEXTS),
    *(
        st.tuples(st.just(name), _lines(name))
        for name in ('metrics.jsonl', 'summary.json', 'data.json')
    ),
)


def _read(folder, name, text):
  """Reads a run folder in which one file has this text."""
  folder.mkdir()
  for path in _GOLDEN.iterdir():
    if path.is_file():
      (folder / path.name).write_bytes(path.read_bytes())
  (folder / name).write_text(text, errors='surrogatepass')
  with fuzz.bounded(20, 0.5):
    try:
      config = run_folder.load_config(folder)
      dataset_record.read(folder, config)
      summary.load(folder)
      metrics_log.read_metrics(folder)
    except UserError as error:
      fuzz.check_line(str(error))


@fuzz.few(80)
@given(_FILES)
def test_files_of_a_run(folders, changed):
  _read(next(folders), *changed)


@pytest.mark.slow
def test_many_files_of_a_run(folders):
  fuzz.campaign(
      'files of a run',
      5_000,
      _FILES,
      lambda changed: _read(next(folders), *changed),
  )
