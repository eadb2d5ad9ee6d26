"""Tests that any override or run file is accepted or gets one clear line."""

import copy
import dataclasses
import json
import pathlib

import fuzz
from hypothesis import given
from hypothesis import strategies as st
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files, train
from gswinrmt_jax.data import datasets
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import dataset_record, metrics_log, run_folder, summary

_SPEC = 'digits_rmt:smoke'
_FIELDS = sorted(dict(recipe_files.leaves(recipe_files.load(_SPEC, []))))
_GOLDEN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'
_OVERRIDES = st.lists(
    st.tuples(st.sampled_from(_FIELDS), fuzz.values()), min_size=1, max_size=3
)
_LEFT_OUT = object()
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 10**400, -(10**30)])
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(['', '\0', 'rmt_t', 'digits', 'train', 'decode', '/']),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def _words(pairs):
  return [f'--config.{field}={value}' for field, value in pairs]


def _resolve(pairs):
  """Reads and resolves a recipe; the only error allowed is a `UserError`."""
  with fuzz.bounded(20, 0.5):
    try:
      recipes.resolve(recipe_files.load(_SPEC, _words(pairs)))
    except UserError as error:
      fuzz.check_line(str(error))


def _build(folder, pairs):
  """Checks that the command refuses a config and creates no folder."""
  argv = [f'--config={_SPEC}', f'--workdir={folder}', *_words(pairs)]
  with fuzz.bounded(60, 1.0):
    said = fuzz.answer(lambda: train.main(argv))
  assert said and not folder.exists()


@pytest.fixture
def folders(tmp_path, monkeypatch):
  """Returns an iterator of new run folders; no data set is prepared."""
  monkeypatch.setattr(cifar10, 'prepare', lambda *_, **how: 1 / 0)
  return (tmp_path / str(number) for number in range(10**9))


@fuzz.few(100)
@given(_OVERRIDES)
def test_overrides(pairs):
  _resolve(pairs)


@pytest.mark.slow
def test_many_overrides():
  fuzz.campaign('overrides, resolved', 4_000, _OVERRIDES, _resolve)


@pytest.mark.parametrize(
    'word',
    [
        'model.depths=(100000,1,1,1)',
        'model.widths=(1099511627776,8,16,16)',
        'model.mlp_ratios=(1e308,1,1,1)',
        'num_epochs=1000000000000',
        'augment.crop_padding=100000000000000000000000',
        'seed=9223372036854775808',
        'data.image_size=1000000',
        'data.image_size=1000000000000000000000',
        'optimizer.warmup_epochs=1e308',
        "data.crop_scale=('a',1)",
        'data.dir=\0',
        'data.name=\n',
        'init_from=\ud800',
        'model.name=' + 'x' * 5000,
        'model.widths=(1e400,)',
        'batch_size=99999999999999',
        'seed=' + '9' * 5000,
    ],
)
def test_what_was_found_is_one_line(word, folders):
  """Each once hung, filled memory, or gave a traceback or an overlong line."""
  _build(next(folders), [word.split('=', 1)])


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
