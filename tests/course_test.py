"""What the host does is done while the devices are in the next steps."""

import io

import pytest
import tiny_parts

from gswinrmt_jax.training import (
    checkpoint,
    compilation,
    evaluation,
    log,
    loop,
    meter,
    progress,
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch, tmp_path_factory):
  tiny_parts.install(monkeypatch)
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
  seen(checkpoint.Checkpoints, 'save', 'save')
  seen(progress.Progress, 'epoch', 'figures')
  seen(evaluation, 'begin', 'validate')
  compiled = compilation.compiled

  def counted(*args, **kwargs):
    advance, sent = compiled(*args, **kwargs), [0]

    def send(state, supply, key):
      sent[0] += int(supply.count)
      events.append(f'send {sent[0]}')
      return advance(state, supply, key)

    return send

  monkeypatch.setattr(compilation, 'compiled', counted)
  return events


def _train(folder, **changes):
  loop.train(tiny_parts.recipe(**changes), folder, log.Terminal(io.StringIO()))


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


def test_an_epoch_is_kept_if_the_steps_behind_it_cannot_be_sent(
    tmp_path, monkeypatch
):
  compiled = compilation.compiled

  def failing(*args, **kwargs):
    advance, calls = compiled(*args, **kwargs), []

    def send(*args):
      calls.append(1)
      if len(calls) == 7:
        raise MemoryError
      return advance(*args)

    return send

  with monkeypatch.context() as patch, pytest.raises(MemoryError):
    patch.setattr(compilation, 'compiled', failing)
    _train(tmp_path)
  assert checkpoint.Checkpoints(tmp_path / 'checkpoints').steps() == [6]
  entries = log.read_metrics(tmp_path)
  assert [entry['step'] for entry in entries] == [5, 6, 6]
