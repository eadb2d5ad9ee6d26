"""What the host does is done while the devices are in the next steps."""

import io

import jax
import pytest
import tiny_parts
import tiny_runs

from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.distributed import compilation, processes
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.runs import meter, metrics_log, progress
from gswinrmt_jax.train import build, course, setup, train_loop

_on_accelerator = course._on_accelerator  # replaced below
_PREPARED = ['state', 'validate', 'compiled']


@pytest.fixture(autouse=True)
def _tiny(monkeypatch, tmp_path_factory):
  tiny_parts.install(monkeypatch)
  monkeypatch.setattr(course, '_on_accelerator', lambda: True)
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.fixture
def events(monkeypatch):
  """What happens, in order; 'send N' is that of the dispatch up to step N."""
  events = []

  def seen(owner, name, word):
    function = getattr(owner, name)

    def told(*args, **kwargs):
      events.append(word)
      return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, told)

  seen(meter.Meter, 'read', 'read')
  seen(meter.Meter, 'pending', 'pending')
  seen(checkpointer.Checkpointer, 'save', 'save')
  seen(progress.Progress, 'epoch', 'figures')
  seen(setup.Parts, 'create_state', 'state')
  seen(evaluator, 'begin', 'validate')

  def counted(advance):
    events.append('compiled')
    sent = [0]

    def send(state, supply, key):
      sent[0] += int(supply.count)
      events.append(f'send {sent[0]}')
      return advance(state, supply, key)

    return send

  _change_steps(monkeypatch, counted)
  return events


def _change_steps(monkeypatch, change):
  """Has the compiled steps be `change(steps)`."""
  begin = compilation.begin

  def changed(*args, **kwargs):
    finish = begin(*args, **kwargs)
    return lambda: change(finish())

  monkeypatch.setattr(compilation, 'begin', changed)


def _train(folder, **changes):
  train_loop.train(
      tiny_parts.recipe(**changes), folder, metrics_log.Terminal(io.StringIO())
  )


def test_the_next_steps_are_sent_before_what_the_last_gave_is_read(
    tmp_path, events
):
  _train(
      tmp_path,
      stop_after_epochs=2,
      steps_per_dispatch=3,
      log_every_steps=3,
      checkpoint_every_steps=9,
  )
  sent = ['send 3', 'send 6', 'send 9', 'send 12']
  assert events == [
      *_PREPARED,
      *sent[:2],
      'read',
      # The validation is not in the time of the steps before it.
      'read',
      'validate',
      sent[2],
      'figures',
      'save',
      sent[3],
      'read',
      'pending',
      'save',
      'read',
      'validate',
      'figures',
      'save',
  ]


def test_a_batch_is_validated_beforehand_to_compile_that(tmp_path, monkeypatch):
  begin, make = evaluator.begin, evaluator.make_eval_step
  batches, traced = [], []

  def counted(step, weights, of, place):
    batches.append(0)

    def placed(batch):
      batches[-1] += 1
      return place(batch)

    return begin(step, weights, of, placed)

  def seen(*args):
    step = make(*args)

    def told(*args):
      traced.append(step)
      return step(*args)

    return told

  monkeypatch.setattr(evaluator, 'begin', counted)
  monkeypatch.setattr(evaluator, 'make_eval_step', seen)
  _train(tmp_path, num_epochs=2)
  first, *epochs, test = batches
  assert first == 1 and len(epochs) == 2 and min(*epochs, test) > 1
  assert len(traced) == 1


def test_what_is_told_is_computed_by_one_program(tmp_path, monkeypatch):
  """Operations behind the next steps would have the host wait for these."""
  make, counts = build.make_optimizer, []

  def seen(*args):
    schedule, tx = make(*args)

    def told(count):
      counts.append(count)
      return schedule(count)

    return told, tx

  monkeypatch.setattr(build, 'make_optimizer', seen)
  _train(tmp_path, stop_after_epochs=1, log_every_steps=1)
  assert len(counts) == 1 and isinstance(counts[0], jax.core.Tracer)
  rates = [
      entry['learning_rate']
      for entry in metrics_log.read_metrics(tmp_path)
      if entry['kind'] == 'train'
  ]
  assert len(rates) == 6 and len(set(rates)) == 6


@pytest.mark.parametrize(
    ('backend', 'count', 'ahead'),
    [('gpu', 1, True), ('gpu', 2, False), ('cpu', 1, False)],
)
def test_one_process_with_an_accelerator_runs_ahead(
    monkeypatch, backend, count, ahead
):
  monkeypatch.setattr(course, '_on_accelerator', _on_accelerator)
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  monkeypatch.setattr(processes, 'share', lambda: (0, count))
  assert course._runs_ahead() == ahead


def test_others_read_before_the_next_steps_are_sent(
    tmp_path, monkeypatch, events
):
  monkeypatch.setattr(course, '_runs_ahead', lambda: False)
  _train(tmp_path, stop_after_epochs=1, steps_per_dispatch=3, log_every_steps=3)
  closed = ['read', 'validate', 'figures', 'save']
  assert events == [*_PREPARED, 'send 3', 'read', 'send 6', *closed]


def test_a_trace_that_begins_with_an_epoch_is_of_its_steps(
    tmp_path, monkeypatch, events
):
  monkeypatch.setattr(
      jax.profiler, 'start_trace', lambda *args, **how: events.append('trace')
  )
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: None)
  _train(
      tmp_path,
      stop_after_epochs=2,
      steps_per_dispatch=3,
      log_every_steps=100,
      profile_steps='7:8',
  )
  closed = ['read', 'validate', 'figures', 'save']
  assert events[len(_PREPARED) + 2 :][:5] == [*closed, 'trace']


def test_two_dispatches_have_data_on_the_device(tmp_path, monkeypatch):
  add, counts = meter.Meter.add, []

  def counted(self, *args):
    shapes = [array.shape for array in jax.live_arrays()]
    counts.append(shapes.count((3, 4, 6, 7, 3)))
    add(self, *args)

  monkeypatch.setattr(meter.Meter, 'add', counted)
  _train(tmp_path, stop_after_epochs=2, steps_per_dispatch=3, log_every_steps=3)
  # The next is fetched behind this.
  assert counts == [1] * 4


def test_it_changes_no_bit(tmp_path, monkeypatch):
  how = {'steps_per_dispatch': 3, 'checkpoint_every_steps': 4}
  _train(tmp_path / 'ahead', **how)
  monkeypatch.setattr(course, '_runs_ahead', lambda: False)
  _train(tmp_path / 'behind', **how)
  ahead, behind = tmp_path / 'ahead', tmp_path / 'behind'
  assert tiny_runs.figures(ahead) == tiny_runs.figures(behind)
  kept = tiny_runs.checksums(ahead, 25)
  assert kept and kept == tiny_runs.checksums(behind, 25)


def _failing(error):
  """Changes steps so that the loop fails as it sends step 7."""

  def failing(advance):
    calls = []

    def send(*args):
      calls.append(1)
      if len(calls) == 7:
        raise error
      return advance(*args)

    return send

  return failing


def test_an_epoch_is_kept_if_the_steps_behind_it_cannot_be_sent(
    tmp_path, monkeypatch
):
  _change_steps(monkeypatch, _failing(MemoryError))
  with pytest.raises(MemoryError):
    _train(tmp_path)
  assert checkpointer.Checkpointer(tmp_path / 'checkpoints').steps() == [6]
  entries = metrics_log.read_metrics(tmp_path)
  assert [entry['step'] for entry in entries] == [5, 6, 6]


def test_ctrl_c_the_second_time_waits_for_nothing(tmp_path, monkeypatch):
  _change_steps(monkeypatch, _failing(KeyboardInterrupt))
  with pytest.raises(KeyboardInterrupt):
    _train(tmp_path)
  assert [entry['step'] for entry in metrics_log.read_metrics(tmp_path)] == [
      5,
      6,
  ]
