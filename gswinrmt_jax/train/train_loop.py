"""A run: from its folder, or from nothing, to its summary."""

import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.distributed import compilation, processes
from gswinrmt_jax.errors import interruption
from gswinrmt_jax.runs import (
    dataset_record,
    metrics_log,
    plots,
    run_folder,
    run_lock,
)
from gswinrmt_jax.runs import summary as closing
from gswinrmt_jax.train import (
    course,
    fine_tuning,
    finish,
    inputs,
    preemption,
    setup,
)


def train(
    config: ml_collections.ConfigDict,
    folder: pathlib.Path,
    terminal: metrics_log.Terminal | None = None,
) -> dict[str, Any]:
  """Trains as the recipe says, from the folder's last checkpoint if it has one.

  Args:
    config: A recipe.
    folder: The run folder.
    terminal: Where progress is told.

  Returns:
    The closing summary, as in `summary.json`.

  Raises:
    UserError: If recipe, data or folder do not allow it.
    RunError: If it cannot go on: a loss that is not finite, a full disk.
    Stopped: If a signal ended it, with a checkpoint.
  """
  compilation.keep_programs()
  heard, terminal = preemption.Signals(), terminal or processes.terminal()
  with heard.heard(), contextlib.ExitStack() as held:
    with processes.together():
      if processes.is_first():
        held.enter_context(run_lock.of_run(folder))
      run = Run(recipes.resolve(config), folder, terminal, heard)
    try:
      processes.check_same('configs or images', run.identity())
      return run.run()
    except (KeyboardInterrupt, SystemError) as error:
      if type(interruption(error)) is KeyboardInterrupt:  # a second signal
        run.checkpoints.abandon()
      raise
    finally:
      run.close()


class Run:
  """The course of one run."""

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      folder: pathlib.Path,
      terminal: metrics_log.Terminal,
      heard: preemption.Signals | None = None,
  ):
    """Builds all parts; the folder is touched last, when they fit together."""
    self.config, self.folder, self.terminal = config, folder, terminal
    self._signals = heard or preemption.Signals()
    inputs.check(config)
    # What can be refused at once is, before data are fetched and decoded.
    run_folder.check_folder(folder, config)
    self.checkpoints = checkpointer.Checkpointer(
        folder / 'checkpoints',
        read_only=not processes.is_first(),
        warn=terminal.say,
    )
    if processes.is_first():
      self.checkpoints.clean()
    newest = self.checkpoints.newest_meta()
    if newest:
      run_folder.check_checkpoint(newest[1]['config'], config, newest[0])
    # A run that goes on has started from them already.
    started = bool(self.checkpoints.steps())
    self._source = None if started else fine_tuning.load(config, terminal.say)
    self.parts = setup.make_parts(config)
    if self._source is not None:
      fine_tuning.check(self.parts.target.variables, self._source)
    self._images = dataset_record.of_run(
        config,
        self.parts.info,
        self.parts.train_data,
        self.parts.val_data,
        self.parts.maps,
    )
    if processes.is_first():
      run_folder.open_folder(folder, config)
      self._images.write(folder)
    self.log = None
    self._course = None
    self._pending = None  # metrics of the interval that a start falls into

  def close(self) -> None:
    """Waits for what is being written, closes files, ends the workers."""
    with contextlib.ExitStack() as stack:  # Each, even if another fails.
      for part in (self.log, self._course, self.checkpoints):
        if part:
          stack.callback(part.close)

  def identity(self) -> list[Any]:
    """Returns what has to be the same in all processes."""
    return [self.config.to_dict(), dataclasses.asdict(self._images)]

  def run(self) -> dict[str, Any]:
    """Trains to the end of the plan and sums up."""
    make_state, start = self._restore_or_create()
    stop = self.parts.plan.stop_step
    # One of an earlier end does not matter, even if it is damaged.
    summary = closing.read(self.folder, start) if start >= stop else None
    if summary:
      # The test split is not read a second time.
      self.terminal.say(f'{self.folder} is complete.')
    else:
      self._open_log(start)
      self._announce(start)
      state = self._train(make_state, start) if start < stop else make_state()
      if processes.is_first():
        plots.draw_curves(self.folder, self.log.entries, self.terminal)
      summary = finish.finish(
          self.parts, self.folder, self.checkpoints, state, self.log.entries
      )
    self.terminal.say(closing.table(summary))
    return summary

  def _open_log(self, start):
    if processes.is_first():
      self.log = metrics_log.MetricsLog(
          self.folder, step=start, terminal=self.terminal
      )
      run_folder.record_start(self.folder, self.config, start)
    else:
      self.log = metrics_log.SilentLog(self.folder, step=start)

  def _restore_or_create(self):
    """Returns what returns the state, and its step."""
    restored = self.checkpoints.restore_latest(self.parts.target)
    if restored:
      self.terminal.say(
          f'Going on from the checkpoint of step {restored.step}.'
      )
      self._pending = restored.meta.get('pending')
      return lambda: restored.tree, restored.step
    return self._create, 0

  def _create(self):
    state = self.parts.create_state()
    if self._source is not None:
      source, self._source = self._source, None
      state = fine_tuning.start(state, source, self.terminal.say)
    return self.parts.devices.place(state)

  def _announce(self, start):
    of = self.parts
    self.terminal.say(
        f'{self.config.model.name}, {closing.parameter_count(of.target):,} '
        f'parameters, on {self.config.data.name}: {len(of.train_data):,} '
        f'training and {len(of.val_data):,} validation images.'
    )
    self.terminal.say(
        f'Steps {start:,} to {of.plan.stop_step:,} of '
        f'{of.plan.total_steps:,}, {len(jax.devices())} x '
        f'{jax.devices()[0].device_kind}. Run folder: {self.folder}'
    )

  def _train(self, make_state, start):
    self._course = course.Course(
        self.parts,
        self.folder,
        start,
        checkpoints=self.checkpoints,
        log=self.log,
        terminal=self.terminal,
        heard=self._signals,
    )
    return self._course.train(make_state, self._pending)
