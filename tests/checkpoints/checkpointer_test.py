"""Tests checkpoints: which are kept, what is restored, damage that is found."""

import errno
import json
import pathlib
import re
import shutil
import threading
from typing import Any

import chex
from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import (
    checkpointer,
    checksums,
    preservation,
    raw_and_ema,
)
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import RunError, UserError

# TensorStore's other reads end after the first failure is raised.
pytestmark = pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnraisableExceptionWarning'
)


class State(struct.PyTreeNode):
  """A small train state."""

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: Any
  ema: Any = None


def _state(step):
  """Returns a state whose values depend on its step."""
  conv = {'kernel': jnp.arange(24.0).reshape(4, 6) + step, 'bias': jnp.ones(3)}
  params = {'conv': conv, 'head': {'kernel': jnp.full((300, 100), step / 8)}}
  return State(
      step=jnp.asarray(step, jnp.int32),
      params=params,
      batch_stats={'norm': {'mean': jnp.full((3,), float(step))}},
      opt_state=(jnp.asarray(step), {'mu': params}, ()),
  )


def _weights(state):
  return {'params': state.params, 'batch_stats': state.batch_stats}


def _target():
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
      _state(0),
  )


def _save(folder, accuracies):
  checkpoints = checkpointer.Checkpointer(folder)
  for step, accuracy in accuracies.items():
    meta = {'config': {'a': (1, 2)}, 'step': step, 'epoch': step}
    checkpoints.save(_state(step), accuracy=accuracy, meta=meta)
  checkpoints.wait()
  return checkpoints


@pytest.fixture(scope='module')
def two(tmp_path_factory):
  """A run folder with checkpoints 4 (the best) and 5."""
  folder = tmp_path_factory.mktemp('two')
  _save(folder / 'checkpoints', {4: 0.75, 5: 0.5}).close()
  return folder


@pytest.fixture
def folder(two, tmp_path):
  """A copy of those checkpoints, for damaging."""
  return pathlib.Path(
      shutil.copytree(two / 'checkpoints', tmp_path / 'checkpoints')
  )


def _files(folder, step):
  return sorted(p for p in (folder / str(step)).rglob('*') if p.is_file())


def _arrays(folder, step):
  return [path for path in _files(folder, step) if path.parent.name == 'd']


def _flip(path, position=None):
  data = bytearray(path.read_bytes())
  bit = len(data) * 4 if position is None else position
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(bytes(data))


# Retention.


@pytest.mark.parametrize(
    ('accuracies', 'gone'),
    [
        ({}, []),
        ({1: 0.5}, []),
        ({1: 0.1, 2: 0.9, 3: 0.3, 4: 0.2, 5: 0.4}, [1, 3]),
        ({1: 0.5, 2: 0.5, 3: 0.2, 4: 0.2}, [1]),  # the later one is best
        ({1: 0.0, 2: 0.0, 3: 0.0}, [1]),
        # Mid-epoch: the latest two, and only while they are the newest.
        ({1: None, 2: None, 3: None}, [1]),
        ({1: 0.5, 2: 0.1, 3: 0.1, 4: None, 5: None, 6: None}, [4]),
        ({1: 0.5, 2: None, 3: 0.1, 4: None}, [2]),
        ({1: 0.5, 2: 0.1, 3: 0.1, 4: None, 5: 0.2}, [2, 4]),
    ],
)
def test_the_best_and_the_two_latest_of_each_kind_are_kept(accuracies, gone):
  assert preservation.superseded(accuracies) == gone


def test_the_best_and_the_latest_are_known_to_the_next_process(tmp_path):
  """Mid-epoch ones go with the next of an epoch."""
  accuracies = {1: 0.5, 2: 0.5, 3: 0.25, 4: 0.25, 5: None, 6: None, 7: None}
  assert _save(tmp_path / 'c', accuracies).steps() == [2, 3, 4, 6, 7]
  reopened = checkpointer.Checkpointer(tmp_path / 'c')
  assert reopened.restore_best(_target()).step == 2
  assert reopened.restore_latest(_target()).step == 7
  reopened.save(_state(8), accuracy=0.125, meta={})
  reopened.wait()
  assert reopened.steps() == [2, 4, 8]
  assert not (tmp_path / 'damaged_checkpoints').exists()


def test_old_ones_go_after_the_new_one_is_whole(tmp_path, monkeypatch):
  folder, seen = tmp_path / 'c', []

  def remove(old):
    restored = checkpointer.read(folder / '3', _target())
    chex.assert_trees_all_equal(restored.tree, _state(3))
    seen.append((old.name, sorted(path.name for path in folder.iterdir())))

  _save(folder, {1: 0.1, 2: 0.2})
  monkeypatch.setattr(files, 'remove', remove)
  _save(folder, {3: 0.3})
  assert seen == [('1', ['1', '2', '3'])]


def test_what_a_killed_run_left_or_had_yet_to_remove_is_removed(
    tmp_path, monkeypatch
):
  folder = tmp_path / 'c'
  with monkeypatch.context() as patch:
    patch.setattr(files, 'remove', lambda folder: None)
    checkpoints = _save(folder, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
  for name in ('.6.12345678.part', '.2.12345678.gone'):
    (folder / name / 'state.orbax-checkpoint-tmp').mkdir(parents=True)
    (folder / name / 'file').touch()
  assert checkpoints.steps() == [1, 2, 3, 4]
  checkpoints.clean()
  assert sorted(path.name for path in folder.iterdir()) == ['3', '4']


@pytest.mark.parametrize('call', ['rename', 'rmtree'])
def test_what_cannot_be_removed_is_told_once_and_tried_again(
    tmp_path, monkeypatch, call
):
  """NFS keeps files that somebody reads; other owners' files stay, too."""
  said, place = [], tmp_path / 'c'

  def busy(path, *_):
    if 'c' in pathlib.Path(path).parent.parts:
      raise OSError(errno.EBUSY, 'Device or resource busy')
    return moved(path, *_)

  moved = pathlib.Path.rename
  _save(place, {1: 0.1, 2: 0.2})
  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path if call == 'rename' else shutil, call, busy)
    checkpoints = checkpointer.Checkpointer(place, warn=said.append)
    for step in (3, 4):
      checkpoints.save(_state(step), accuracy=step / 10, meta={})
      checkpoints.wait()
    assert checkpoints.restore_latest(_target()).step == 4
    assert len(said) == 1 and 'cannot be removed (Device or resource' in said[0]
    checkpointer.Checkpointer(place, warn=said.append).clean()
    assert len(said) == 2  # at the start of a run, too
    assert len(list(place.iterdir())) == 4
  checkpoints.save(_state(5), accuracy=0.5, meta={})
  checkpoints.wait()
  assert sorted(path.name for path in place.iterdir()) == ['4', '5']


# Saving.


def test_saving_copies_the_state_and_writes_in_a_thread(tmp_path, monkeypatch):
  """The next train step donates the buffers of the state."""
  held, write = threading.Event(), checkpointer.write

  def slow(*what):
    held.wait()
    write(*what)

  monkeypatch.setattr(checkpointer, 'write', slow)
  checkpoints = checkpointer.Checkpointer(tmp_path / 'c')
  state = jax.tree.map(jnp.copy, _state(3))
  checkpoints.save(state, accuracy=0.5, meta={})
  overwrite = jax.jit(
      lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree),
      donate_argnums=0,
  )
  jax.block_until_ready(overwrite(state))
  assert checkpoints.steps() == []
  held.set()
  checkpoints.wait()
  restored = checkpoints.restore_latest(_target())
  chex.assert_trees_all_equal(restored.tree, _state(3))


def test_saving_compiles_nothing(tmp_path):
  checkpoints = _save(tmp_path / 'c', {3: 0.5})
  state = _state(4)
  with jax.no_tracing():
    checkpoints.save(state, accuracy=0.5, meta={})
    checkpoints.wait()
  assert checkpoints.steps() == [3, 4]


def test_what_cannot_be_saved_is_one_line(tmp_path):
  checkpoints = _save(tmp_path / 'c', {4: 0.3})
  with pytest.raises(RunError, match='cannot save a checkpoint') as caught:
    checkpoints.save(_state(5), accuracy=0.5, meta={'no': jnp})  # not JSON
    checkpoints.wait()
  assert '\n' not in str(caught.value)
  assert [path.name for path in (tmp_path / 'c').iterdir()] == ['4']


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path):
  checkpoints = checkpointer.Checkpointer(tmp_path / 'run' / 'checkpoints')
  checkpoints.save(_state(5), accuracy=0.5, meta={})
  with pytest.raises(RunError, match=r'cannot save .*No such file or dir'):
    checkpoints.wait()
  assert not (tmp_path / 'run').exists()


# Restoring.


def test_restores_state_and_meta_bit_for_bit(two, monkeypatch):
  monkeypatch.chdir(two)
  relative = pathlib.Path('checkpoints')
  restored = checkpointer.Checkpointer(relative).restore_latest(_target())
  chex.assert_trees_all_equal(restored.tree, _state(5))
  chex.assert_trees_all_equal_structs(restored.tree, _state(5))
  assert restored.step == 5
  assert restored.meta['config'] == {'a': [1, 2]}
  assert restored.meta['accuracy'] == 0.5


def test_fields_may_be_empty_or_absent(tmp_path):
  for name, batch_stats, ema in (
      ('a', {}, None),
      ('b', {}, {'x': jnp.ones(2)}),
  ):
    state = _state(3).replace(batch_stats=batch_stats, ema=ema)
    checkpoints = checkpointer.Checkpointer(tmp_path / name)
    checkpoints.save(state, accuracy=0.5, meta={})
    checkpoints.wait()
    target = jax.eval_shape(lambda state=state: state)
    restored = checkpoints.restore_latest(target)
    chex.assert_trees_all_equal(restored.tree, state)
    assert restored.tree.batch_stats == {}


def test_what_was_never_saved_is_no_damage(folder):
  checkpoints = checkpointer.Checkpointer(folder)
  target = {**_weights(_target()), 'ema': {'params': _target().params}}
  with pytest.raises(UserError, match='has no ema/params/conv/bias'):
    checkpoints.restore_latest(target)
  assert checkpoints.steps() == [4, 5]


@pytest.mark.parametrize('more', [True, False])
def test_another_optimizer_state_is_told_as_other_software(folder, more):
  """An upgrade of Optax may add or remove a part of its state."""
  count = _target().step
  target = _target()
  counts = (count, count) if more else ()
  target = target.replace(opt_state=(*counts, {'mu': target.params}, ()))
  checkpoints = checkpointer.Checkpointer(folder)
  with pytest.raises(UserError, match=r'version of Optax makes .*init_from='):
    checkpoints.restore_latest(target)
  assert checkpoints.steps() == [4, 5]
  restored = checkpoints.restore_latest(_weights(_target()))
  chex.assert_trees_all_equal(restored.tree, _weights(_state(5)))


def test_an_empty_folder_restores_nothing(tmp_path):
  checkpoints = checkpointer.Checkpointer(tmp_path / 'c')
  assert checkpoints.restore_latest(_target()) is None
  assert checkpoints.restore_best(_target()) is None
  assert checkpoints.newest_meta() is None


# Damage.


def _truncate(folder):
  for path in _files(folder, 5):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_a_bit(folder):
  """Flips a bit of array data, which Orbax reads without an error."""
  for path in _arrays(folder, 5):
    _flip(path)


def _change_meta(folder):
  path = folder / '5' / 'meta' / 'metadata'
  path.write_bytes(path.read_bytes().replace(b'"epoch": 5', b'"epoch": 4'))


def _take_the_values(folder):
  for path in _arrays(folder, 5):
    path.unlink()


def _empty_step(folder):
  (folder / '7').mkdir()


def _empty_all_files(folder):
  """Leaves empty files, as a power failure does."""
  for path in _files(folder, 5):
    path.write_bytes(b'')


@pytest.mark.parametrize(
    ('damage', 'bad', 'good', 'reason'),
    [
        (_truncate, 5, 4, 'meta/metadata: '),
        (_flip_a_bit, 5, 4, ''),
        (_change_meta, 5, 4, 'meta/metadata: its checksum differs'),
        (_take_the_values, 5, 4, ''),
        (_empty_all_files, 5, 4, 'meta/metadata: Expecting value'),
        (_empty_step, 7, 5, 'meta/metadata: No such file'),
    ],
)
def test_a_damaged_checkpoint_is_named_skipped_and_kept(
    folder, damage, bad, good, reason
):
  damage(folder)
  said = []
  checkpoints = checkpointer.Checkpointer(folder, warn=said.append)
  restored = checkpoints.restore_latest(_target())
  assert restored.step == good
  chex.assert_trees_all_equal(restored.tree, _state(good))
  (line,) = said
  assert re.search(rf'checkpoint {bad} .* is damaged \({reason}', line), line
  assert (folder.parent / 'damaged_checkpoints' / str(bad)).is_dir()
  # Training reaches the bad step again, and can save it.
  checkpoints.save(_state(bad), accuracy=0.5, meta={})
  checkpoints.wait()
  assert checkpoints.restore_latest(_target()).step == bad


def test_what_is_set_aside_takes_no_others_place(folder):
  for _ in range(3):
    _change_meta(folder)
    checkpoints = checkpointer.Checkpointer(folder, warn=lambda line: None)
    checkpoints.save(_state(5), accuracy=0.5, meta={'epoch': 5})
    checkpoints.wait()
  shelf = folder.parent / 'damaged_checkpoints'
  assert {path.name for path in shelf.iterdir()} == {'5', '5_1', '5_2'}


def test_a_linked_directory_keeps_what_is_set_aside_on_its_disk(folder):
  other = folder.parent / 'other_disk'
  other.mkdir()
  folder.rename(other / 'checkpoints')
  folder.symlink_to(other / 'checkpoints')
  _change_meta(folder)
  checkpoints = checkpointer.Checkpointer(folder, warn=lambda line: None)
  assert checkpoints.restore_latest(_target()).step == 4
  assert (other / 'damaged_checkpoints' / '5').is_dir()


@pytest.mark.parametrize('kind', ['taken', 'cut', 'flipped'])
def test_any_one_file_is_damage_or_was_not_needed(folder, kind):
  """All values have checksums: a checkpoint that can be read is correct.

  Orbax's own markers are among the files that are not needed.
  """
  checkpoints = checkpointer.Checkpointer(folder, read_only=True)
  damaged = []
  for path in _files(folder, 5):
    whole, name = path.read_bytes(), str(path.relative_to(folder / '5'))
    for position in (0, None) if kind == 'flipped' else (None,):
      path.unlink()
      if kind == 'cut':
        path.write_bytes(whole[: len(whole) // 2])
      elif kind == 'flipped':
        path.write_bytes(whole)
        _flip(path, position)
      try:
        restored = checkpoints.restore(5, _target())
      except UserError as error:
        assert 'checkpoint 5 ' in str(error) and ' is damaged (' in str(error)
        damaged.append(name)
      else:
        chex.assert_trees_all_equal(restored.tree, _state(5))
      path.write_bytes(whole)
  assert 'meta/metadata' in damaged and 'state/_METADATA' in damaged
  assert any('/d/' in name for name in damaged)


def test_a_flipped_bit_in_the_metadata_of_the_best_is_said(folder):
  """It may not silently change which checkpoint is the best."""
  path = folder / '4' / 'meta' / 'metadata'
  accuracy = path.read_bytes().index(b'"accuracy"') + len('"accuracy": 0')
  _flip(path, accuracy * 8 + 8 + 1)  # 0.75 becomes 0.55
  said = []
  checkpoints = checkpointer.Checkpointer(
      folder, read_only=True, warn=said.append
  )
  assert checkpoints.restore_best(_target()).step == 5
  (line,) = said
  assert 'checkpoint 4 ' in line and 'its checksum differs' in line


def test_a_damaged_best_falls_back_to_the_next_best(tmp_path):
  folder = tmp_path / 'checkpoints'
  _save(folder, {3: 0.9, 4: 0.3, 5: 0.4}).close()
  shutil.rmtree(folder / '3' / 'state')
  said = []
  checkpoints = checkpointer.Checkpointer(folder, warn=said.append)
  restored = checkpoints.restore_best(_target())
  assert restored.step == 5
  assert len(said) == 1 and 'checkpoint 3 ' in said[0]
  chex.assert_trees_all_equal(restored.tree, _state(5))


def test_reading_moves_nothing(folder):
  _truncate(folder)
  said = []
  checkpoints = checkpointer.Checkpointer(
      folder, read_only=True, warn=said.append
  )
  restored = checkpoints.restore_latest(_weights(_target()))
  assert restored.step == 4 and len(said) == 1
  assert checkpoints.newest_meta()[0].name == '4'
  with pytest.raises(UserError, match=r'checkpoint 5 .* is damaged .*: 4'):
    checkpoints.restore(5, _weights(_target()))
  with pytest.raises(UserError, match=r'no checkpoint 6 .*4, 5'):
    checkpoints.restore(6, _weights(_target()))
  assert not (folder.parent / 'damaged_checkpoints').exists()


@pytest.mark.parametrize('function', ['read', 'read_meta'])
@pytest.mark.parametrize(
    ('accuracies', 'saved', 'how', 'found'),
    [
        ({1: 0.9, 2: 0.1, 3: 0.2}, {4: 0.95}, 'restore_best', 4),
        ({1: 0.5, 2: None}, {3: 0.4}, 'restore_latest', 3),
        ({2: None}, {3: 0.4}, 'restore_latest', 3),
    ],
)
def test_a_reader_follows_a_run_that_trains(
    tmp_path, monkeypatch, function, accuracies, saved, how, found
):
  """The run saves, and removes what it supersedes, while another reads."""
  folder = tmp_path / 'checkpoints'
  _save(folder, accuracies).close()
  said, original = [], getattr(checkpointer, function)

  def read(*arguments):
    monkeypatch.setattr(checkpointer, function, original)
    _save(folder, saved).close()
    return original(*arguments)

  reader = checkpointer.Checkpointer(folder, read_only=True, warn=said.append)
  monkeypatch.setattr(checkpointer, function, read)
  restored = getattr(reader, how)(_weights(_target()))
  assert restored.step == found and not said


@pytest.mark.parametrize('damage', [_truncate, _empty_all_files])
def test_if_all_are_damaged_all_stay_and_it_says_so(folder, damage):
  shutil.rmtree(folder / '4')
  damage(folder)
  checkpoints = checkpointer.Checkpointer(folder, warn=lambda line: None)
  for restore in (checkpoints.restore_latest, checkpoints.restore_best):
    with pytest.raises(UserError, match=r'none of the checkpoints \[5\]'):
      restore(_target())
  assert (folder / '5').is_dir()


# Errors that are not damage.


def _denied(*args, **kwargs):
  raise ValueError(
      'PERMISSION_DENIED: Error opening "cast" driver: Failed to open: "d/a": '
      "Permission denied [os_error_code='13'] [tensorstore_spec='{}']"
  )


def _no_memory(*args, **kwargs):
  raise ValueError('RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes')


def _raises(error):
  def read(*args, **kwargs):
    raise error

  return read


@pytest.mark.parametrize(
    ('read', 'said'),
    [
        (
            _raises(OSError(errno.EIO, 'Input/output error')),
            'Input/output error',
        ),
        (_raises(MemoryError()), 'MemoryError'),
        (_denied, 'Permission denied'),
        (_no_memory, 'RESOURCE_EXHAUSTED'),
    ],
)
def test_what_the_system_refuses_is_no_damage(folder, monkeypatch, read, said):
  import orbax.checkpoint as ocp

  monkeypatch.setattr(ocp.Checkpointer, 'restore', read)
  checkpoints = checkpointer.Checkpointer(folder)
  for restore in (
      lambda: checkpoints.restore_latest(_target()),
      lambda: checkpoints.restore_best(_target()),
      lambda: checkpoints.restore(5, _target()),
  ):
    with pytest.raises(UserError, match=f'cannot be read now .{said}'):
      restore()
  assert checkpoints.steps() == [4, 5]


# Several processes, simulated by threads.


def _in_two_processes(monkeypatch, work):
  """Returns what each of two processes returns or raises."""
  barrier, numbers, outcomes = threading.Barrier(2, timeout=60), {}, {}
  own = threading.local()

  def greatest(number):
    numbers[own.index] = number
    barrier.wait()
    found = max(numbers.values())
    barrier.wait()
    return found

  monkeypatch.setattr(processes, 'greatest', greatest)
  monkeypatch.setattr(processes, 'is_first', lambda: own.index == 0)

  def run(index):
    own.index = index
    try:
      outcomes[index] = work(index)
    except BaseException as error:
      outcomes[index] = error

  threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return [outcomes[0], outcomes[1]]


def _read_with(monkeypatch, errors):
  """Makes the read of each `(process, step)` in `errors` raise its error."""
  read = checkpointer.read

  def failing(folder, target):
    index = int(threading.current_thread().name)
    if (index, int(folder.name)) in errors:
      raise errors[index, int(folder.name)]
    return read(folder, target)

  monkeypatch.setattr(checkpointer, 'read', failing)


def _restore_in_two(folder, monkeypatch, errors):
  _read_with(monkeypatch, errors)

  def work(index):
    threading.current_thread().name = str(index)
    checkpoints = checkpointer.Checkpointer(
        folder, read_only=index > 0, warn=lambda line: None
    )
    return checkpoints.restore_latest(_target()).step

  return _in_two_processes(monkeypatch, work)


def test_all_processes_skip_what_the_first_finds_damaged(folder, monkeypatch):
  errors = {(0, 5): checkpointer.DamagedError('changed')}
  assert _restore_in_two(folder, monkeypatch, errors) == [4, 4]


@pytest.mark.parametrize('index', [0, 1])
def test_no_process_restores_what_another_cannot_read(
    folder, monkeypatch, index
):
  errors = {(index, 5): OSError(errno.EIO, 'Input/output error')}
  found = _restore_in_two(folder, monkeypatch, errors)
  assert all(isinstance(error, UserError) for error in found), found
  assert 'read now (Input/output error)' in str(found[index])
  assert 'read now (by another process)' in str(found[1 - index])
  assert checkpointer.Checkpointer(folder).steps() == [4, 5]


def test_damage_that_the_first_does_not_see_moves_nothing(folder, monkeypatch):
  errors = {(1, 5): checkpointer.DamagedError('its checksum differs')}
  found = _restore_in_two(folder, monkeypatch, errors)
  assert all(isinstance(error, UserError) for error in found), found
  assert 'its checksum differs' in str(found[1])
  assert checkpointer.Checkpointer(folder).steps() == [4, 5]


def test_the_first_process_alone_writes(tmp_path, monkeypatch):
  def work(index):
    checkpoints = checkpointer.Checkpointer(tmp_path / 'c')
    checkpoints.save(_state(index + 3), accuracy=0.5, meta={})
    checkpoints.wait()
    return checkpoints.steps()

  assert _in_two_processes(monkeypatch, work) == [[3], [3]]


# Checksums and names.


def test_a_checksum_sees_one_bit_and_the_order():
  array = np.arange(6, dtype=np.float32)
  one_bit = array.copy()
  one_bit.view(np.uint32)[3] ^= 1
  sums = [checksums.of_tree({'a': a}) for a in (array, one_bit, array[::-1])]
  assert len({*sums}) == 3
  assert checksums.of_tree({'a': array.copy()}) == sums[0]


def test_what_differs_is_named():
  tree = {'a': np.arange(6.0), 'b': (np.float32(0), np.ones(2))}
  other = {**tree, 'a': tree['a'][::-1]}
  saved = checksums.by_name(tree)
  assert list(saved) == ['a', 'b/0', 'b/1']
  assert checksums.differing(saved, tree) == []
  assert checksums.differing(saved, other) == ['a']
  assert checksums.differing(saved, {'b': tree['b']}) == []  # `a` is not read
  # Old runs have one checksum per field.
  fields = {name: checksums.of_tree(part) for name, part in tree.items()}
  assert checksums.differing(fields, tree) == []
  assert checksums.differing(fields, other) == ['a']


def test_the_checksum_of_json_is_that_of_its_value():
  value = {'b': (1, 2.5), 'a': None}
  again = json.loads(json.dumps(value, indent=4))
  assert checksums.of_json(value) == checksums.of_json(again)
  assert checksums.of_json(value) != checksums.of_json({**value, 'a': 0})


def test_names_of_raw_weights_and_average():
  raw, ema = {'params': 1, 'batch_stats': 2}, {'params': 3, 'batch_stats': 4}
  both = raw_and_ema.pack(raw, ema)
  assert both == {**raw, 'ema': ema}
  assert raw_and_ema.unpack(both) == {'raw': raw, 'ema': ema}
  assert raw_and_ema.unpack(raw_and_ema.pack(raw, None)) == {'raw': raw}
  figures = raw_and_ema.merged({'raw': {'accuracy': 1}, 'ema': {'accuracy': 2}})
  assert figures == {'accuracy': 1, 'ema_accuracy': 2}


def test_of_equal_accuracies_the_latest_is_best():
  accuracies = {1: -1, 2: 0.0, 3: None, 4: -1}
  assert preservation.best_first(accuracies) == [2, 4, 1, 3]
