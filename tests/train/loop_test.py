"""Tests the train loop with a tiny model, mostly against an unbroken run."""

import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_parts
import tiny_runs

from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.commands import guard
from gswinrmt_jax.data import datasets, records
from gswinrmt_jax.distributed import compilation, mesh, processes
from gswinrmt_jax.errors import RunError, Stopped, UserError
from gswinrmt_jax.runs import metrics_log, plots
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.train import train_loop, train_step, trainer

pytestmark = pytest.mark.usefixtures(
    'compiled_once', 'usual_kernels', 'tiny_installed'
)


@pytest.fixture(scope='module')
def unbroken_run(tmp_path_factory):
  """Returns the folder of a whole run with its curves."""
  folder = tmp_path_factory.mktemp('run') / 'unbroken'
  with pytest.MonkeyPatch.context() as patch:
    tiny_parts.install(patch)
    patch.setattr(plots, 'draw_curves', tiny_parts.DRAW_CURVES)
    tiny_parts.train(folder)
  return folder


def test_a_run_leaves_all_that_it_promises(unbroken_run):
  names = {path.name for path in unbroken_run.iterdir()}
  assert names >= {
      'augmented_batch.png',
      'checkpoints',
      'config.json',
      'curves.png',
      'environment.json',
      'metrics.jsonl',
      'summary.json',
      'tensorboard',
  }
  entries = metrics_log.read_metrics(unbroken_run)
  intervals = [e['step'] for e in entries if e['kind'] == 'train']
  epochs = [e['step'] for e in entries if e['kind'] == 'epoch']
  assert epochs == [6, 12, 18, 25]
  assert intervals == [5, 6, 10, 12, 15, 18, 20, 25]
  first = entries[0]
  assert 0 < first['gamma_min'] <= first['gamma_max'] < 1
  assert first['grad_norm'] > 0
  # Step 5 has the learning rate at count 4 of 6 warm-up steps.
  np.testing.assert_allclose(first['learning_rate'], 0.05 * 4 / 6, rtol=1e-6)
  assert entries[-1]['val_loss'] < entries[2]['val_loss']
  summary = json.loads((unbroken_run / 'summary.json').read_text())
  assert summary['last']['step'] == summary['steps'] == 25
  best = max(entries, key=lambda e: e.get('val_accuracy', -1))
  assert summary['best']['val_accuracy'] == best['val_accuracy']


def test_cut_and_resumed_equals_unbroken_bit_for_bit(unbroken_run, tmp_path):
  tiny_parts.train(tmp_path / 'cut', stop_after_epochs=2)
  # A damaged summary of the first part does not matter.
  (tmp_path / 'cut' / 'summary.json').write_text('{')
  _, said = tiny_parts.train(tmp_path / 'cut')
  assert 'Resuming from the checkpoint of step 12.' in said
  sums = [
      tiny_runs.checksums(run, 25) for run in (tmp_path / 'cut', unbroken_run)
  ]
  assert sums[0] == sums[1]
  assert tiny_runs.figures(tmp_path / 'cut') == tiny_runs.figures(unbroken_run)
  starts = json.loads((tmp_path / 'cut' / 'environment.json').read_text())
  assert [start['step'] for start in starts] == [0, 12]


def test_a_run_with_muon_resumes_bit_for_bit(unbroken_run, tmp_path):
  for name, epochs in (('whole', 2), ('cut', 1), ('cut', 2)):
    muon = {'optimizer.name': 'muon', 'stop_after_epochs': epochs}
    tiny_parts.train(tmp_path / name, **muon)
  found = tiny_runs.figures(tmp_path / 'cut')
  assert found == tiny_runs.figures(tmp_path / 'whole')
  assert found != tiny_runs.figures(unbroken_run)[: len(found)]
  sums = (tiny_runs.checksums(tmp_path / run, 12) for run in ('cut', 'whole'))
  assert next(sums) == next(sums)


@pytest.fixture
def loaded(monkeypatch):
  """Returns a list that receives the name of each split that is loaded."""
  names = []
  monkeypatch.setattr(
      datasets,
      'load',
      lambda name, split, data_dir, **how: names.append(split)
      or tiny_parts.SPLITS[split],
  )
  return names


def test_a_complete_run_is_not_tested_again(unbroken_run, loaded, monkeypatch):
  """Its state is not read either."""
  monkeypatch.setattr(checkpointer, 'read', None)
  before = (unbroken_run / 'metrics.jsonl').read_bytes()
  summary, said = tiny_parts.train(unbroken_run)
  assert 'is complete' in said and loaded == ['train', 'val']
  assert summary == json.loads((unbroken_run / 'summary.json').read_text())
  assert (unbroken_run / 'metrics.jsonl').read_bytes() == before
  _, said = tiny_parts.train(unbroken_run, **{'data.test_split': 'auto'})
  assert 'is complete' in said and 'Its test split' not in said
  # Another test split does not take the place of the one that was tested.
  recorded = (unbroken_run / 'data.json').read_bytes()
  other, said = tiny_parts.train(unbroken_run, **{'data.test_split': 'val'})
  assert "Its test split is 'test': " in said and other == summary
  assert (unbroken_run / 'data.json').read_bytes() == recorded


def test_a_run_that_ended_after_its_last_checkpoint_is_summed_up(
    unbroken_run, tmp_path, monkeypatch
):
  monkeypatch.setattr(plots, 'draw_curves', tiny_parts.DRAW_CURVES)
  folder = shutil.copytree(unbroken_run, tmp_path / unbroken_run.name)
  for name in ('summary.json', 'curves.png'):
    (folder / name).unlink()
  tiny_parts.train(folder)
  for name in ('summary.json', 'curves.png'):
    assert (folder / name).read_bytes() == (unbroken_run / name).read_bytes()


def test_a_damaged_summary_does_not_open_the_test_split_again(
    unbroken_run, loaded, tmp_path
):
  folder = shutil.copytree(unbroken_run, tmp_path / 'run')
  path = folder / 'summary.json'
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(UserError, match=r'summary\.json cannot be read'):
    tiny_parts.train(folder)
  assert 'test' not in loaded


def test_a_tested_run_does_not_train_again_if_its_last_checkpoint_is_gone(
    unbroken_run, loaded, tmp_path
):
  folder = shutil.copytree(unbroken_run, tmp_path / 'run')
  shutil.rmtree(folder / 'checkpoints' / '25')
  before = (folder / 'metrics.jsonl').read_bytes()
  with pytest.raises(
      UserError, match=r'summary of .* is of step 25, .* checkpoint is of step'
  ):
    tiny_parts.train(folder)
  assert (folder / 'metrics.jsonl').read_bytes() == before
  assert 'test' not in loaded


@pytest.mark.parametrize('lost', [None, 'metrics.jsonl', 'summary.json'])
def test_a_run_without_its_checkpoints_does_not_start_again(
    unbroken_run, tmp_path, lost
):
  folder = shutil.copytree(unbroken_run, tmp_path / 'run')
  shutil.rmtree(folder / 'checkpoints')
  if lost:
    (folder / lost).unlink()
  with pytest.raises(UserError, match='of a run, but no checkpoint: put'):
    tiny_parts.train(folder)
  for name in {'metrics.jsonl', 'summary.json'} - {lost}:
    assert (folder / name).read_bytes() == (unbroken_run / name).read_bytes()


def test_a_run_does_not_stop_before_its_newest_checkpoint(tmp_path):
  folder = tmp_path / 'run'
  tiny_parts.train(folder, stop_after_epochs=2, checkpoint_every_steps=4)
  (folder / 'summary.json').unlink()
  with pytest.raises(UserError, match='is already at step 12, in epoch 2: rai'):
    tiny_parts.train(folder, stop_after_epochs=1, checkpoint_every_steps=4)


def test_another_config_is_refused(unbroken_run, tmp_path):
  """By the folder's config, and by the config in its checkpoints."""
  with pytest.raises(UserError, match=r'optimizer\.b1 is 0\.9 there and 0\.8'):
    tiny_parts.train(unbroken_run, **{'optimizer.b1': 0.8})
  for name in ('checkpoints', 'config.json', 'data.json'):
    copy = shutil.copytree if name == 'checkpoints' else shutil.copy
    copy(unbroken_run / name, tmp_path / name)
  config = json.loads((tmp_path / 'config.json').read_text())
  config['optimizer']['weight_decay'] = 0.5
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError) as refused:
    tiny_parts.train(tmp_path, **{'optimizer.weight_decay': 0.5})
  message = str(refused.value)
  assert f'{tmp_path / "checkpoints" / "25"} belongs to another' in message
  assert 'optimizer.weight_decay is 0.05 there and 0.5 here' in message
  assert (tmp_path / 'checkpoints' / '25').is_dir()


def test_the_seed_decides(tmp_path):
  """Initialisation, order of the images, and all that training draws."""

  def drawn(name, seed):
    recipe = tiny_parts.recipe(seed=seed)
    with tiny_parts.open_run(recipe, tmp_path / name) as run:
      _, batch = next(run.data.train_batches(0, 6))
      kernel = run.trainer.init_state().params['conv']['kernel']
      return kernel, batch['row'], jax.random.key_data(run.trainer.key)

  first, same, other = drawn('a', 0), drawn('b', 0), drawn('c', 1)
  for one, two, three in zip(first, same, other, strict=True):
    np.testing.assert_array_equal(one, two)
    assert (one != three).any()


def test_a_run_is_tested_once_when_it_has_a_test_split(tmp_path):
  summary, said = tiny_parts.train(tmp_path / 'run', **{'data.test_split': ''})
  assert 'val_accuracy' in summary['best']
  assert not [name for name in summary['best'] if name.startswith('test')]
  assert 'test accuracy' not in said and 'not tested' not in said
  for words in ('test accuracy', 'is complete'):
    summary, said = tiny_parts.train(tmp_path / 'run')
    assert words in said and 'test_accuracy' in summary['best']


def test_images_that_changed_meanwhile_are_not_tested_on(tmp_path, monkeypatch):
  draw = plots.Curves.wait

  def changed(curves):  # after training
    test = tiny_parts.SPLITS['test']
    source = records.Arrays(test.image[::-1], test.label[::-1])
    turned = records.Arrays(source.image, source.label, source)
    monkeypatch.setitem(tiny_parts.SPLITS, 'test', turned)
    draw(curves)

  monkeypatch.setattr(plots.Curves, 'wait', changed)
  with pytest.raises(RunError, match='test images of digits have changed'):
    tiny_parts.train(tmp_path / 'run')
  assert not (tmp_path / 'run' / 'summary.json').exists()


def test_a_signal_after_the_last_step_ends_the_run(tmp_path, monkeypatch):
  """The signal arrives while the last curves are drawn, before the test."""
  wait = plots.Curves.wait

  def interrupted(curves):
    signal.raise_signal(signal.SIGTERM)
    wait(curves)

  monkeypatch.setattr(plots.Curves, 'wait', interrupted)
  with pytest.raises(Stopped, match='stopped by SIGTERM'):
    tiny_parts.train(tmp_path / 'run')
  assert not (tmp_path / 'run' / 'summary.json').exists()
  monkeypatch.undo()
  tiny_parts.install(monkeypatch)
  summary, _ = tiny_parts.train(tmp_path / 'run')
  assert 'test_accuracy' in summary['last']


def test_steps_and_validation_are_compiled_as_the_config_says(
    tmp_path, monkeypatch
):
  plain, options = jax.jit, []

  def jit(function, **how):
    options.append(how.get('compiler_options'))
    return plain(function, **how)

  monkeypatch.setattr(jax, 'jit', jit)
  quick = []
  for effort in ('full', 'quick'):
    options.clear()
    config = tiny_parts.recipe(compile_effort=effort)
    with tiny_parts.open_run(config, tmp_path / effort):
      pass
    quick.append(options.count(compilation.quick_compilation()))
  assert quick[1] - quick[0] == 2


# --- Around the loop.


def test_implicit_transfers_in_the_loop_are_refused(tmp_path, monkeypatch):
  """A host value that slips into the loop would be sent at every step."""
  add = metrics_log.MetricsLog.add

  def careless(self, metrics):
    add(self, {**metrics, 'loss': metrics['loss'] + np.float32(1)})

  monkeypatch.setattr(metrics_log.MetricsLog, 'add', careless)
  with pytest.raises(Exception, match='Disallowed host-to-device transfer'):
    tiny_parts.train(tmp_path)


def test_data_are_read_one_batch_ahead(tmp_path, monkeypatch):
  """While a step runs, only the next batch is fetched."""
  events, put = [], mesh.Devices.put_batch
  monkeypatch.setattr(
      mesh.Devices,
      'put_batch',
      lambda self, batch: events.append('put') or put(self, batch),
  )
  with tiny_parts.open_run(
      tiny_parts.recipe(stop_after_epochs=1), tmp_path / 'run'
  ) as run:
    for step, _ in run.data.train_batches(0, 6):
      events.append(step)
  # Two batches before step 1, then one before each of steps 2 to 5.
  assert events == ['put', 'put', 1, 'put', 2, 'put', 3, 'put', 4, 'put', 5, 6]


def test_no_more_than_one_step_waits_for_another(tmp_path, monkeypatch):
  """A signal ends a run after the steps that have been queued."""

  @jax.jit
  def slowly(loss):  # tens of milliseconds
    square = jnp.full((200, 200), 0.1)
    square = jax.lax.fori_loop(0, 100, lambda _, x: jnp.sin(x @ x), square)
    return loss + 0 * square.sum()

  make, losses_seen, unfinished = train_loop._compile_and_init, [], []

  def slowed(*arguments):
    state, train_step, batches = make(*arguments)

    def step(*arguments):
      unfinished.append(sum(not loss.is_ready() for loss in losses_seen))
      state, metrics = train_step(*arguments)
      losses_seen.append(slowly(metrics['loss']))
      return state, {**metrics, 'loss': losses_seen[-1]}

    return state, step, batches

  monkeypatch.setattr(train_loop, '_compile_and_init', slowed)
  tiny_parts.train(tmp_path, stop_after_epochs=1, log_every_steps=6)
  assert len(unfinished) == 6 and max(unfinished) <= 1


@pytest.mark.parametrize(
    'error',
    [UserError('a worker was killed'), OSError(5, 'bad'), MemoryError()],
)
def test_an_error_of_the_feed_ends_a_run_with_status_1(
    tmp_path, monkeypatch, capsys, error
):
  """Status 2 would mean that the run had not begun, but step 6 is saved."""
  batches = data_lib.Data.train_batches

  def failing(self, start, stop):
    for step, batch in batches(self, start, stop):
      if step == 9:
        raise error
      yield step, batch

  monkeypatch.setattr(data_lib.Data, 'train_batches', failing)
  status = guard.guarded(lambda: tiny_parts.train(tmp_path) and None)
  assert status == 1
  assert capsys.readouterr().err.startswith('gswinrmt: ')
  assert checkpointer.Checkpointer(tmp_path / 'checkpoints').steps() == [6]


def test_another_process_that_fails_ends_a_run_with_status_1(
    tmp_path, monkeypatch, capsys
):
  asked = []

  def greatest(number):
    asked.append(number)
    return int(len(asked) > 8) or number

  def begin(self):
    monkeypatch.setattr(processes, 'greatest', greatest)
    return init(self)

  init = trainer.Trainer.init_state
  monkeypatch.setattr(trainer.Trainer, 'init_state', begin)
  assert guard.guarded(lambda: tiny_parts.train(tmp_path) and None) == 1
  assert 'another process failed' in capsys.readouterr().err


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
  """As in `gswinrmt train ... | head -1`."""
  reader, writer = os.pipe()
  os.close(reader)
  with os.fdopen(writer, 'w') as broken:
    train_loop.train(
        tiny_parts.recipe(stop_after_epochs=2), tmp_path, Terminal(broken)
    )
  assert (tmp_path / 'summary.json').exists()


def test_the_picture_of_the_first_batch_is_what_the_first_step_sees(tmp_path):
  with tiny_parts.open_run(tiny_parts.recipe(), tmp_path / 'run') as run:
    _, batch = next(run.data.train_batches(0, 6))
    before, (image, targets) = run.trainer.augmented(batch, 3)
    key = train_step.augment_key(run.trainer.key, 0)
    want, want_targets = jax.jit(run.trainer.augmentation)(key, batch, 0)
  np.testing.assert_array_equal(before['image'], batch['image'][:3])
  np.testing.assert_allclose(image, want[:3], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(targets, want_targets[:3], rtol=1e-6)
