"""What is kept, what is restored, what is skipped."""

import pathlib
import re
import shutil
import threading

import chex
import jax
import jax.numpy as jnp
import optax
import pytest
import tiny

from gswinrmt_jax.checkpoints import (
    checkpoint_files,
    checkpoint_io,
    checkpointer,
    checksums,
)
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import RunError, Stopped, UserError
from gswinrmt_jax.train import snapshot
from gswinrmt_jax.train import train_state as state_lib

TX = optax.adamw(1e-2)


def _state(step):
  """A state whose values tell its step."""
  state = state_lib.create(tiny.Tiny(), TX, jax.random.key(0), (6, 7, 3))
  filled = jax.tree.map(lambda leaf: leaf + step / 8, state)
  return filled.replace(step=jnp.asarray(step, jnp.int32))


def _taken(state):
  return snapshot.Snapshots().take(checkpoint_io.fields(state))


def _target():
  return mesh.Devices().target(jax.eval_shape(lambda: _state(0)))


def _save(folder, accuracies):
  checkpoints = checkpointer.Checkpoints(folder)
  for step, accuracy in accuracies.items():
    meta = {'config': {'a': [1, 2]}, 'step': step, 'epoch': step}
    checkpoints.save(_taken(_state(step)), accuracy=accuracy, meta=meta)
  checkpoints.wait()
  return checkpoints


def _files(folder, step, item='state'):
  """The files of an item, largest first."""
  files = (folder / str(step) / item).rglob('*')
  files = [path for path in files if path.is_file()]
  return sorted(files, key=lambda path: -path.stat().st_size)


def test_keeps_the_two_latest_and_the_best(tmp_path):
  accuracies = {1: 0.1, 2: 0.9, 3: 0.3, 4: 0.2, 5: 0.4}
  checkpoints = _save(tmp_path / 'c', accuracies)
  assert checkpoints.steps() == [2, 4, 5]
  assert checkpoints.restore_best(_target()).step == 2
  checkpoints.close()
  reopened = checkpointer.Checkpoints(tmp_path / 'c', read_only=True)
  assert (
      reopened.restore_best(_target()).step == 2
  )  # not forgotten with the process
  reopened.close()


def test_of_equal_accuracies_the_later_is_best(tmp_path):
  accuracies = {1: 0.5, 2: 0.5, 3: 0.25, 4: 0.25, 5: 0.25}
  checkpoints = _save(tmp_path / 'c', accuracies)
  assert checkpoints.restore_best(_target()).step == 2
  assert checkpoints.steps() == [2, 4, 5]
  checkpoints.close()


def test_one_from_amid_an_epoch_is_no_best_and_goes_with_the_next(tmp_path):
  checkpoints = _save(tmp_path / 'c', {2: 0.25, 3: None, 4: None, 5: None})
  assert checkpoints.steps() == [2, 4, 5]
  assert checkpoints.restore_best(_target()).step == 2
  assert checkpoints.restore_latest(_target()).step == 5
  checkpoints.save(_taken(_state(6)), accuracy=0.125, meta={})
  checkpoints.wait()
  assert checkpoints.steps() == [2, 6]
  assert not (tmp_path / 'damaged_checkpoints').exists()


def test_the_old_go_when_the_new_one_is_whole(tmp_path, monkeypatch):
  folder, seen = tmp_path / 'c', []

  def remove(old):
    names = sorted(path.name for path in folder.iterdir())
    seen.append((old.name, names, checkpoint_files.damage(folder / '3')))

  _save(folder, {1: 0.1, 2: 0.2})
  monkeypatch.setattr(checkpoint_files, 'remove', remove)
  _save(folder, {3: 0.3})
  assert seen == [('1', ['1', '2', '3'], [])]


def test_the_caller_waits_for_the_copy_alone(tmp_path, monkeypatch):
  """The rest is not even begun while this is held."""
  held, write = threading.Event(), checkpoint_io.write

  def slow(*what):
    held.wait()
    write(*what)

  monkeypatch.setattr(checkpoint_io, 'write', slow)
  checkpoints = checkpointer.Checkpoints(tmp_path / 'c')
  state = _state(3)
  checkpoints.save(_taken(state), accuracy=0.5, meta={})
  assert checkpoints.steps() == []
  held.set()
  checkpoints.wait()
  assert checkpoints.steps() == [3]


def test_what_a_killed_run_left_is_removed(tmp_path):
  folder = tmp_path / 'c'
  checkpoints = _save(folder, {3: 0.5})
  for name in ('4.part', '4.part.orbax-checkpoint-tmp', '2.gone'):
    (folder / name / 'state').mkdir(parents=True)
    (folder / name / 'state' / 'file').touch()
  assert checkpoints.steps() == [3]
  checkpoints.clean()
  assert [path.name for path in folder.iterdir()] == ['3']


def test_restores_state_and_meta_bit_for_bit(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  checkpoints = _save(pathlib.Path('relative'), {3: 0.5})
  restored = checkpoints.restore_latest(_target())
  checkpoints.close()
  chex.assert_trees_all_equal(restored.tree, _state(3))
  chex.assert_trees_all_equal_structs(restored.tree, _state(3))
  assert restored.step == 3
  assert restored.meta['config'] == {'a': [1, 2]}


def test_a_model_without_batch_norm_has_no_statistics_to_restore(tmp_path):
  state = _state(3).replace(batch_stats={})
  checkpoints = checkpointer.Checkpoints(tmp_path / 'c')
  checkpoints.save(_taken(state), accuracy=0.5, meta={})
  checkpoints.wait()
  target = mesh.Devices().target(jax.eval_shape(lambda: state))
  restored = checkpoints.restore_latest(target)
  checkpoints.close()
  chex.assert_trees_all_equal(restored.tree, state)
  assert restored.tree.batch_stats == {}


def test_restores_the_weights_alone_without_the_optimiser(tmp_path):
  _save(tmp_path / 'c', {3: 0.5}).close()
  checkpoints = checkpointer.Checkpoints(tmp_path / 'c', read_only=True)
  restored = checkpoints.restore(3, _target().variables)
  checkpoints.close()
  chex.assert_trees_all_equal(restored.tree, _state(3).variables)


def test_an_empty_folder_restores_nothing(tmp_path):
  checkpoints = checkpointer.Checkpoints(tmp_path / 'c')
  assert checkpoints.restore_latest(_target()) is None
  checkpoints.close()


def _truncate(folder):
  for path in _files(folder, 5):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_a_bit(folder):
  """In array data: what Orbax reads without a complaint."""
  for path in _arrays(folder):
    _flip(path)


def _flip_a_bit_of_meta(folder):
  """Where the position in the data is, and the checksums of the values."""
  path = folder / '5' / 'meta' / 'metadata'
  path.write_bytes(path.read_bytes().replace(b'"epoch": 5', b'"epoch": 4'))


def _arrays(folder):
  return [path for path in _files(folder, 5) if path.parent.name == 'd']


def _flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(bytes(data))


def _take_the_values(folder):
  for path in _arrays(folder):
    path.unlink()


def _empty_step(folder):
  (folder / '7').mkdir()


def _empty_all_files(folder):
  """What a loss of power leaves."""
  for path in (folder / '5').rglob('*'):
    if path.is_file():
      path.write_bytes(b'')


# TensorStore's other reads end after the first failure has been raised.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize(
    ('damage', 'bad', 'good', 'reason'),
    [
        (_truncate, 5, 4, r'state/\S+: \d+ bytes instead of \d+ and \d+ more'),
        (_flip_a_bit, 5, 4, r'state/\S*d/\w+: its bytes changed and \d+ more'),
        (_flip_a_bit_of_meta, 5, 4, 'meta/metadata: its bytes changed'),
        (_take_the_values, 5, 4, r'state/\S*d/\w+: missing and \d+ more'),
        (_empty_all_files, 5, 4, r'files\.json: Expecting value'),
        (_empty_step, 7, 5, 'meta/metadata: missing and 1 more'),
    ],
)
def test_a_damaged_checkpoint_is_named_skipped_and_kept(
    tmp_path, damage, bad, good, reason
):
  folder = tmp_path / 'checkpoints'
  _save(folder, {4: 0.3, 5: 0.4}).close()
  damage(folder)
  said = []
  checkpoints = checkpointer.Checkpoints(folder, warn=said.append)
  restored = checkpoints.restore_latest(_target())
  assert restored.step == good
  chex.assert_trees_all_equal(restored.tree, _state(good))
  (line,) = said
  assert re.search(
      rf'checkpoint {bad} .* cannot be read \({reason}', line
  ), line
  assert (tmp_path / 'damaged_checkpoints' / str(bad)).is_dir()
  # Training comes past the bad step again, and can save it.
  checkpoints.save(_taken(_state(bad)), accuracy=0.5, meta={})
  checkpoints.wait()
  restored = checkpoints.restore_latest(_target())
  checkpoints.close()
  assert restored.step == bad


def test_a_signal_as_one_is_read_is_no_damage(tmp_path, monkeypatch):
  """Not if code in C hides it, either."""
  folder = tmp_path / 'checkpoints'
  _save(folder, {4: 0.3, 5: 0.4}).close()

  def read(*args):
    raise SystemError('returned a result with an exception set') from (
        Stopped('stopped by SIGTERM', 15)
    )

  monkeypatch.setattr(checkpoint_io, 'read', read)
  checkpoints = checkpointer.Checkpoints(folder)
  for restore in (
      lambda: checkpoints.restore_latest(_target()),
      lambda: checkpoints.restore(5, _target()),
  ):
    with pytest.raises(Stopped, match='by SIGTERM'):
      restore()
  assert checkpoints.steps() == [4, 5]
  checkpoints.close()


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('kind', ['taken', 'cut', 'flipped'])
def test_any_one_file_is_named_or_was_not_needed(tmp_path, kind):
  """All values have checksums: where they can be read they are the right ones.

  Orbax's own marks are among the files that are not needed.
  """
  folder = tmp_path / 'checkpoints'
  _save(folder, {5: 0.4}).close()
  checkpoints = checkpointer.Checkpoints(folder, read_only=True)
  named = []
  for path in _files(folder, 5, 'state') + _files(folder, 5, 'meta'):
    whole, name = path.read_bytes(), str(path.relative_to(folder / '5'))
    path.unlink()
    if kind == 'cut':
      path.write_bytes(whole[: len(whole) // 2])
    elif kind == 'flipped':
      path.write_bytes(whole)
      _flip(path)
    try:
      restored = checkpoints.restore(5, _target())
    except UserError as error:
      assert f'({name}: ' in str(error)
      named.append(name)
    else:
      chex.assert_trees_all_equal(restored.tree, _state(5))
    path.write_bytes(whole)
  assert 'meta/metadata' in named and any('/d/' in name for name in named)


def test_a_damaged_best_falls_back_to_the_next_best(tmp_path):
  folder = tmp_path / 'checkpoints'
  _save(folder, {3: 0.9, 4: 0.3, 5: 0.4}).close()
  shutil.rmtree(folder / '3' / 'state')
  said = []
  checkpoints = checkpointer.Checkpoints(folder, warn=said.append)
  restored = checkpoints.restore_best(_target())
  assert restored.step == 5
  assert len(said) == 1 and 'checkpoint 3 ' in said[0]
  chex.assert_trees_all_equal(restored.tree, _state(5))


def test_what_cannot_be_saved_is_one_line(tmp_path):
  checkpoints = _save(tmp_path / 'c', {4: 0.3})
  with pytest.raises(UserError, match='cannot save a checkpoint') as caught:
    checkpoints.save(
        _taken(_state(5)), accuracy=0.5, meta={'no': jnp}
    )  # not JSON
    checkpoints.wait()
  assert '\n' not in str(caught.value)
  assert checkpointer.Checkpoints(tmp_path / 'c').restore_latest(_target())


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path):
  checkpoints = checkpointer.Checkpoints(tmp_path / 'run' / 'checkpoints')
  checkpoints.save(_taken(_state(5)), accuracy=0.5, meta={})
  with pytest.raises(RunError, match=r'run was removed while it was trained'):
    checkpoints.wait()
  assert not (tmp_path / 'run').exists()


def test_values_that_changed_on_disk_are_not_taken(tmp_path, monkeypatch):
  """What Orbax reads without complaint, but is not what was saved."""
  by_name = checksums.by_name

  def wrong(tree):
    sums = by_name(tree)
    return {**sums, 'params/conv/kernel': sums['params/conv/kernel'] ^ 1}

  with monkeypatch.context() as patch:
    patch.setattr(checksums, 'by_name', wrong)
    _save(tmp_path / 'c', {5: 0.4}).close()
  checkpoints = checkpointer.Checkpoints(tmp_path / 'c', read_only=True)
  with pytest.raises(UserError, match='checksum of params/conv/kernel differs'):
    checkpoints.restore(5, _target().variables)
  checkpoints.close()


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_reading_moves_nothing(tmp_path):
  folder = tmp_path / 'checkpoints'
  _save(folder, {4: 0.3, 5: 0.4}).close()
  _truncate(folder)
  said = []
  checkpoints = checkpointer.Checkpoints(
      folder, read_only=True, warn=said.append
  )
  restored = checkpoints.restore_latest(_target().variables)
  assert restored.step == 4 and len(said) == 1
  with pytest.raises(UserError, match=r'checkpoint 5 .* cannot be read'):
    checkpoints.restore(5, _target().variables)
  with pytest.raises(UserError, match=r'no checkpoint 6 .*4, 5'):
    checkpoints.restore(6, _target().variables)
  checkpoints.close()
  assert not (tmp_path / 'damaged_checkpoints').exists()


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('damage', [_truncate, _empty_all_files])
def test_if_none_can_be_read_all_stay_and_it_says_so(tmp_path, damage):
  folder = tmp_path / 'checkpoints'
  _save(folder, {5: 0.4}).close()
  damage(folder)
  with pytest.raises(UserError, match='none of the checkpoints'):
    checkpointer.Checkpoints(folder, warn=lambda line: None).restore_latest(
        _target()
    )
  assert (folder / '5').is_dir()
