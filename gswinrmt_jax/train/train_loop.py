"""The train loop: starts or resumes a run and writes its summary."""

from collections.abc import Iterator, Mapping
import contextlib
import gc
import itertools
import pathlib
import signal
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.distributed import compilation, processes
from gswinrmt_jax.errors import run_has_begun, Stopped, UserError
from gswinrmt_jax.runs import dataset_record, plots, run_folder
from gswinrmt_jax.runs import summary as summary_lib
from gswinrmt_jax.runs.metrics_log import MetricsLog
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.train import profiler
from gswinrmt_jax.train.preemption import Preemption
from gswinrmt_jax.train.run import open_run, Run
from gswinrmt_jax.train.train_state import TrainState


def train(
    config: ml_collections.ConfigDict,
    folder: pathlib.Path,
    terminal: Terminal | None = None,
) -> dict[str, Any]:
  """Trains as configured, resuming from the folder's latest checkpoint if any.

  Returns:
    The summary, as in `summary.json`.

  Raises:
    UserError: If the config, the data or the folder is unsuitable.
    RunError: If a run that has begun cannot continue, for example after a
      non-finite loss or on a full disk.
    Stopped: If a signal ended the run. Completed steps are in a checkpoint.
  """
  compilation.keep_programs()
  terminal, folder = terminal or processes.terminal(), pathlib.Path(folder)
  with contextlib.ExitStack() as stack:
    preemption = stack.enter_context(Preemption())
    run = stack.enter_context(open_run(config, folder, terminal))
    schedule = run.schedule
    if summary := _summary_of_finished(run):
      said = f'{folder} is complete.'
      if summary['steps'] < schedule.total_steps:
        said = f'{folder} has reached config.stop_after_epochs.'
      tested = run_folder.load_config(folder).data.test_split
      if tested and tested != run.config.data.test_split:
        said += (
            f' Its test split is {tested!r}: for another, run `gswinrmt '
            'evaluate` with --split.'
        )
      terminal.say(f'{said}\n{summary_lib.table(summary)}')
      return summary
    _check_progress(run)
    restored = run.checkpoints.restore_latest(run.trainer.target)
    start = restored.step if restored else 0
    stack.enter_context(run_has_begun())  # Errors are `RunError` from here.
    log = stack.enter_context(contextlib.closing(run.start_log(start)))
    batches = stack.enter_context(
        contextlib.closing(run.data.train_batches(start, schedule.stop_step))
    )
    state, train_step, batches = _compile_and_init(run, restored, batches)
    preemption.check()
    step, stop = start, 0
    with _loop_context(run, preemption, start) as (profile, curves):
      for step, batch in log.clock.timing(_until_killed(batches, preemption)):
        with profile.step(step):
          state, metrics = train_step(state, batch, run.trainer.key)
          log.add(metrics)  # stays on the devices
        if schedule.logs_at(step):
          log.write_interval(step)  # waits for the devices
          run.checkpoints.check()
        scores = None
        if schedule.validates_at(step):
          scores = run.validate(state)
          log.write_epoch(step, scores)
          if processes.is_first():
            curves.update(log.entries)
        if scores or schedule.saves_at(step):
          run.save(state, step, scores)  # asynchronous
        stop = preemption.requested(agree=schedule.logs_at(step))
        if stop:
          break
      # The batches end early if the signal has also killed the data workers.
      if stop or step < schedule.stop_step:
        _end_early(run, log, state, step, stop or preemption.received)
    preemption.check()  # A signal may have come after the last step.
    summary = _summarize(run, log, state)
    terminal.say(summary_lib.table(summary))
    return summary


def _summary_of_finished(run):
  """Returns the summary of a finished run without restoring its state.

  Returns None if steps remain or if the summary has not been written yet.
  """
  step = _newest_step(run)
  if step < run.schedule.stop_step:
    return None
  # A summary of this last step is reused, so that the test split is read once.
  summary = summary_lib.load(run.folder)
  if not summary or summary['steps'] != step:
    return None
  due = step == run.schedule.total_steps and run.config.data.test_split
  return None if due and not summary_lib.is_tested(summary) else summary


def _check_progress(run):
  """Refuses a start that would leave out or repeat steps of the run.

  Raises:
    UserError: If the run is to end before its newest checkpoint, or was summed
      up after a later one, which is missing or damaged.
  """
  step, schedule = _newest_step(run), run.schedule
  if step > schedule.stop_step:
    raise UserError(
        f'{run.folder} is already at step {step:,}, in epoch '
        f'{schedule.epoch_of(step)}: raise config.stop_after_epochs, which is '
        f'{schedule.stop_after_epochs}'
    )
  summed_up = 0
  with contextlib.suppress(UserError):  # A damaged one will be replaced.
    summed_up = (summary_lib.load(run.folder) or {}).get('steps', 0)
  if summed_up > step > 0:
    raise UserError(
        f'the summary of {run.folder} is of step {summed_up:,}, but its newest '
        f'intact checkpoint is of step {step:,}: put the later ones back, or '
        f'remove summary.json to train again from step {step:,}'
    )


def _newest_step(run):
  newest = run.checkpoints.newest_meta()
  return int(newest[0].name) if newest else 0  # the name of the checkpoint


def _compile_and_init(run, restored, batches):
  """Compiles the train step in a thread; meanwhile initialises the state.

  Returns:
    The state, restored if possible; the compiled step; and the batches. A run
    without steps left needs no step.
  """
  first = next(batches, None)
  if first is None:
    return restored.tree, None, ()
  _, batch = first
  trainer = run.trainer
  with run.terminal.busy('Compiling the training step (once)'):
    # Garbage collection would scan the millions of objects of tracing again and
    # again, which takes a fifth of the time.
    gc.disable()
    try:
      lowered = trainer.train_step.lower(trainer.target, batch, trainer.key)
    finally:
      gc.enable()
    compiled = compilation.in_thread(lowered.compile)
    state = restored.tree if restored else run.init_state(batch)
    return state, compiled.result(), itertools.chain([first], batches)


@contextlib.contextmanager
def _loop_context(
    run: Run, preemption: Preemption, start: int
) -> Iterator[tuple[profiler.Profiler, plots.Curves]]:
  """Yields profiler and curves; defers signals and refuses transfers."""
  with contextlib.ExitStack() as stack:
    steps = profiler.parse(run.config.profile_steps, run.schedule.stop_step)
    if steps and steps[-1] <= start:
      run.terminal.say(
          f'No trace is written: steps {steps[0]:,} to {steps[-1]:,} of '
          'config.profile_steps are already done.'
      )
    profile = profiler.Profiler(steps, run.folder / 'profile', run.terminal)
    stack.callback(profile.close)
    curves = plots.Curves(run.folder, run.terminal)
    stack.callback(curves.wait)
    stack.enter_context(preemption.defer())
    # An implicit transfer between host and device is an error.
    stack.enter_context(jax.transfer_guard('disallow'))
    yield profile, curves


def _until_killed(batches, preemption):
  """Yields batches, ending early if a signal has also killed the workers."""
  try:
    yield from batches
  except UserError:
    # One of several processes must not end before the others.
    if not preemption.received or jax.process_count() > 1:
      raise


def _end_early(run, log, state, step, number):
  """Logs and saves a step unless that is done, and raises `Stopped`."""
  schedule = run.schedule
  if not schedule.logs_at(step):
    log.write_interval(step)
  if not (schedule.validates_at(step) or schedule.saves_at(step)):
    run.save(state, step, None)
  run.checkpoints.wait()
  raise Stopped(
      f'stopped by {signal.Signals(number).name} after step {step:,}, with a '
      'checkpoint of that step; the same command resumes from there',
      number,
  )


def _summarize(
    run: Run, log: MetricsLog, last: TrainState
) -> Mapping[str, Any]:
  """Evaluates the test split, if there is one, and writes `summary.json`.

  The test split is read only here, once, after the whole schedule. A run that
  stops early is judged on validation data alone.
  """
  config, target = run.config, run.trainer.target
  run.checkpoints.wait()
  best = run.checkpoints.restore_best(
      raw_and_ema.pack(target.variables, target.ema)
  )
  step, tested = int(last.step), {}
  if step == run.schedule.total_steps and config.data.test_split:
    split = config.data.test_split
    data = data_lib.load_eval(config, split)
    if dataset_record.is_other(run.folder, 'test', split, data.source):
      raise UserError(
          f'the test images of {config.data.name} have changed since the run '
          'began: put the earlier ones back, and the same command tests on '
          'them; or test on the new ones by `gswinrmt evaluate`, as the '
          'checkpoints are complete'
      )
    saved = raw_and_ema.pack(last.variables, last.ema)
    tested[step] = run.evaluate(saved, data)
    if best.step != step:
      tested[best.step] = run.evaluate(best.tree, data)
  facts = {
      'model': config.model.name,
      'data': config.data.name,
      'seed': config.seed,
      'parameters': summary_lib.parameter_count(last),
  }
  summary = summary_lib.summarize(
      facts, run.schedule, log.entries, tested, last=step, best=best.step
  )
  if processes.is_first():
    plots.draw_curves(run.folder, log.entries, run.terminal, summary)
    files.write_json(run.folder / 'summary.json', summary)
  return summary
