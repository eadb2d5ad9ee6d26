"""The train loop: starts or resumes a run and writes its summary."""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import itertools
import pathlib
import signal
import textwrap
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import files, recipes
from gswinrmt_jax.checkpoints import checkpointer, raw_and_ema
from gswinrmt_jax.distributed import compilation, processes
from gswinrmt_jax.errors import (
    interruption,
    run_has_begun,
    RunError,
    Stopped,
    UserError,
)
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import dataset_record, plots, run_folder
from gswinrmt_jax.runs import summary as summary_lib
from gswinrmt_jax.runs.metrics_log import MetricsLog, NotFiniteError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import fine_tuning, profiler
from gswinrmt_jax.train import preemption as preemption_lib
from gswinrmt_jax.train import setup as setup_lib
from gswinrmt_jax.train.train_state import TrainState
from gswinrmt_jax.weights import load as weights


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
  terminal = terminal or processes.terminal()
  with contextlib.ExitStack() as stack:
    preemption = stack.enter_context(preemption_lib.Preemption())
    with processes.together():  # If one process fails, all do.
      config = recipes.resolve(config)
      run = stack.enter_context(open_run(config, folder, terminal))
    identity = [config.to_dict(), dataclasses.asdict(run.images)]
    processes.check_same('configs or images', identity)
    summary = _summary_of_finished(run)
    if summary:
      terminal.say(f'{folder} is complete.')
    else:
      restored = run.checkpoints.restore_latest(run.setup.target)
      start = restored.step if restored else 0
      stack.enter_context(run_has_begun())  # Errors are `RunError` from here.
      _announce(run, start)
      log = stack.enter_context(contextlib.closing(_open_log(run, start)))
      if start < run.setup.schedule.stop_step:
        state = _fit(run, log, restored, preemption)
        preemption.check()  # A signal may have come after the last step.
      else:
        state = restored.tree
      summary = _summarize(run, log, state)
    terminal.say(summary_lib.table(summary))
    return summary


def _summary_of_finished(run):
  """Returns the summary of a finished run without restoring its state.

  Returns None if steps remain or if the summary has not been written yet.
  """
  newest = run.checkpoints.newest_meta()
  step = int(newest[0].name) if newest else 0  # the name of the checkpoint
  if step < run.setup.schedule.stop_step:
    return None
  # A summary of this last step is reused, so that the test split is read once.
  summary = summary_lib.load(run.folder)
  return summary if summary and summary['steps'] == step else None


def _fit(run, log, restored, preemption):
  """Compiles the step, trains to the last step and returns the state."""
  setup = run.setup
  start = restored.step if restored else 0
  with contextlib.closing(setup.train_batches(start)) as batches:
    step, batch = next(batches)
    with compilation.in_background(
        setup.train_step,
        setup.target,
        batch,
        setup.key,
        terminal=run.terminal,
    ) as wait_for_step:
      if restored:
        state = restored.tree
      else:
        state = _init_state(run)
        run.init_from = None  # frees host memory
        _write_augmented_batch(run, batch)
      train_step = wait_for_step()
    preemption.check()
    batches = itertools.chain([(step, batch)], batches)
    return _loop(run, log, preemption, train_step, state, batches)


def _loop(run, log, preemption, train_step, state, batches):
  """Trains on all batches, or until a signal, and returns the state."""
  setup, schedule = run.setup, run.setup.schedule
  with contextlib.ExitStack() as stack:
    profile = profiler.Profiler(
        setup.profiled, run.folder / 'profile', run.terminal
    )
    stack.callback(profile.close)
    curves = plots.Curves(run.folder, run.terminal)
    stack.callback(curves.wait)
    stack.enter_context(_with_advice(run))
    stack.enter_context(preemption.deferred())
    # An implicit transfer between host and device is an error.
    stack.enter_context(jax.transfer_guard('disallow'))
    batches = _while_workers_live(batches, preemption)
    for step, batch in log.timing(batches):
      with profile.step(step):
        state, metrics = train_step(state, batch, setup.key)
        log.add(metrics)  # stays on the devices
      stop = preemption.requested(agree=schedule.logs_at(step))
      if schedule.logs_at(step):
        log.write_interval(step)  # waits for the devices
        run.checkpoints.check()
      scores = None
      if schedule.validates_at(step):
        scores = setup.validate(state)
        log.write_epoch(step, scores)
        curves.update(log.entries)
        stop = stop or preemption.requested(agree=True)
      if scores or schedule.saves_at(step):
        _save(run, state, step, scores)  # asynchronous
      if stop:
        break
    # The batches end early if the signal has also killed the data workers.
    if stop or step < schedule.stop_step:
      _end_early(run, log, state, step, stop or preemption.received)
  return state


def _while_workers_live(batches, preemption):
  """Yields batches, ending early if a signal has also killed the workers."""
  try:
    yield from batches
  except UserError:
    # One of several processes must not end before the others.
    if not preemption.received or jax.process_count() > 1:
      raise


def _end_early(run, log, state, step, number):
  """Logs and saves a step unless that is done, and raises `Stopped`."""
  schedule = run.setup.schedule
  if not schedule.logs_at(step):
    log.write_interval(step)
  if not (schedule.validates_at(step) or schedule.saves_at(step)):
    _save(run, state, step, None)
  run.checkpoints.wait()
  raise Stopped(
      f'stopped by {signal.Signals(number).name} after step {step:,}, with a '
      'checkpoint of that step; the same command resumes from there',
      number,
  )


@dataclasses.dataclass
class Run:
  """A run whose folder is open; a new one may start from `init_from`."""

  folder: pathlib.Path
  setup: setup_lib.Setup
  checkpoints: checkpointer.Checkpointer
  init_from: weights.Weights | None
  images: dataset_record.ImageSpec
  terminal: Terminal


@contextlib.contextmanager
def open_run(
    config: ml_collections.ConfigDict, folder: pathlib.Path, terminal: Terminal
) -> Iterator[Run]:
  """Locks a run folder and builds what the run of a resolved config needs.

  Config fields and folder are checked before the data is fetched and decoded.
  Whatever depends on the number of images, such as the schedule, is checked
  afterwards. Config and data record are written once all checks have passed.

  Raises:
    UserError: If the config, the data or the folder is unsuitable.
  """
  with contextlib.ExitStack() as stack:
    if processes.is_first():
      stack.enter_context(run_folder.held(folder))
    run_folder.check_folder(folder, config)
    checkpoints = checkpointer.Checkpointer(
        folder / 'checkpoints',
        read_only=not processes.is_first(),
        warn=terminal.say,
    )
    if processes.is_first():
      checkpoints.clean()
    newest = checkpoints.newest_meta()
    if newest:
      saved = recipes.from_json(newest[1]['config'], str(newest[0]))
      run_folder.check_same(saved, config, newest[0])
    # A resumed run has already started from these weights.
    init_from = None
    if config.init_from and not checkpoints.steps():
      init_from = weights.load(config.init_from, warn=terminal.say)
    setup = setup_lib.build(config, terminal)
    if init_from:
      fine_tuning.check(setup.target.variables, init_from)
    images = dataset_record.of_run(
        config, setup.info, setup.train_data, setup.val_data, setup.maps
    )
    if processes.is_first():
      run_folder.write_config(folder, config, replace=False)
      images.write(folder)
    stack.callback(checkpoints.close)
    try:
      yield Run(folder, setup, checkpoints, init_from, images, terminal)
    except (KeyboardInterrupt, SystemError) as error:
      # C code that is interrupted raises SystemError. A first signal raises
      # `Stopped`; KeyboardInterrupt itself is the second one.
      if type(interruption(error)) is KeyboardInterrupt:
        checkpoints.abandon()
      raise


def _announce(run, start):
  setup, config = run.setup, run.setup.config
  if start:
    run.terminal.say(f'Resuming from the checkpoint of step {start:,}.')
  fields = config.model.to_dict()
  name = fields.pop('name')
  parameters = summary_lib.parameter_count(setup.target)
  model = factory.describe(name, fields, parameters)
  what = (
      f'{model}, on {config.data.name}: '
      f'{len(setup.train_data):,} training and {len(setup.val_data):,} '
      'validation images.'
  )
  run.terminal.say(textwrap.fill(what, 80))
  run.terminal.say(
      f'Steps {start:,} to {setup.schedule.stop_step:,} of '
      f'{setup.schedule.total_steps:,}, {len(jax.devices())} x '
      f'{jax.devices()[0].device_kind}. Run folder: {run.folder}'
  )


def _open_log(run, start):
  if processes.is_first():
    # Not before a checkpoint is restored: if that fails, the folder has to keep
    # the config that belongs to it.
    run_folder.write_config(run.folder, run.setup.config)
    run_folder.record_start(run.folder, run.setup.config, start)
  return MetricsLog(
      run.folder,
      step=start,
      schedule=run.setup.schedule,
      terminal=run.terminal,
      skip_nonfinite=run.setup.config.nan_policy == 'skip',
      read_only=not processes.is_first(),
  )


def _init_state(run):
  """Returns the state before the first step, on the devices."""
  state = run.setup.init_state()
  if run.init_from is not None:
    state = fine_tuning.start(state, run.init_from, run.terminal.say)
    state = run.setup.devices.replicate(state)
  return state


def _write_augmented_batch(run, batch):
  """Plots the first batch, before and after augmentation."""
  name = 'augmented_batch.png'
  before, after = run.setup.augmented(batch, plots.DRAWN)
  if processes.is_first():
    with run.terminal.sparing(name):
      path = run.folder / name
      plots.write_augmented_batch(path, before, after, run.setup.info)


def _save(run, state, step, scores):
  """Saves a state; without scores, as a mid-epoch checkpoint."""
  score, which = None, raw_and_ema.RAW
  if scores:
    score, which = raw_and_ema.better(scores)
  config = run.setup.config
  run.checkpoints.save(
      state,
      accuracy=score,
      meta={
          'config': config.to_dict(),
          'step': step,
          'epoch': run.setup.schedule.epoch_of(step),
          'weights': which,
      },
  )


@contextlib.contextmanager
def _with_advice(run):
  """Adds to a `NotFiniteError` how the run can be continued."""
  try:
    yield
  except NotFiniteError as error:
    run.checkpoints.wait()
    steps = run.checkpoints.steps()
    if steps:
      last = (
          f'the same command resumes from the checkpoint of step {steps[-1]:,} '
          f'in {run.folder}'
      )
    else:
      last = f'there is no checkpoint in {run.folder} yet'
    raise RunError(
        f'{error}; {last}; add --config.nan_policy=skip to skip single steps '
        'that are not finite; if there are many, start another --workdir with '
        'a lower config.optimizer.learning_rate or config.dtype=float32'
    ) from error


def _summarize(
    run: Run, log: MetricsLog, last: TrainState
) -> Mapping[str, Any]:
  """Evaluates the test split, if there is one, and writes `summary.json`.

  The test split is read only here, once, after the whole schedule. A run that
  stops early is judged on validation data alone.
  """
  setup, config = run.setup, run.setup.config
  run.checkpoints.wait()
  weights_of_last = raw_and_ema.joined(last.variables, last.ema)
  target = raw_and_ema.joined(setup.target.variables, setup.target.ema)
  best = run.checkpoints.restore_best(target)
  step, tested = int(last.step), {}
  if step == setup.schedule.total_steps and config.data.test_split:
    data = setup_lib.load_eval(config, config.data.test_split)
    tested[step] = setup.evaluate(weights_of_last, data)
    if best.step != step:
      tested[best.step] = setup.evaluate(best.tree, data)
  summary = summary_lib.summarize(
      config, setup.schedule, log.entries, tested, last=step, best=best.step
  )
  summary['parameters'] = summary_lib.parameter_count(last)
  if processes.is_first():
    plots.draw_curves(run.folder, log.entries, run.terminal, summary)
    files.write_json(run.folder / 'summary.json', summary)
  return summary
