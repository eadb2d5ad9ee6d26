"""How far the runs of an experiment are, read from their folders alone."""

from collections.abc import Iterable
import dataclasses

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments.sets import Job
from gswinrmt_jax.runs import metrics_log, run_folder
from gswinrmt_jax.runs import summary as closing

_COMPLETE = 'complete'


@dataclasses.dataclass(frozen=True)
class Status:
  """Of one run.

  Attributes:
    epoch: The last one that was validated; 0: none.
    epochs: Where the run is to end.
    complete: Whether it has been summed up there.
    differs: In which fields the folder belongs to another recipe; '' if to
      this one.
    val_accuracy: Behind the last epoch; None: none.
    test_accuracy: Of the last checkpoint; None: not tested.
  """

  epoch: int
  epochs: int
  complete: bool = False
  differs: str = ''
  val_accuracy: float | None = None
  test_accuracy: float | None = None

  @property
  def state(self) -> str:
    """In words."""
    if self.differs:
      return f'of another config: {self.differs}'
    if self.complete:
      return _COMPLETE
    return f'epoch {self.epoch} of {self.epochs}' if self.epoch else 'not begun'


def read(job: Job) -> Status:
  """Returns how far a run is; `UserError` if its folder cannot be read."""
  config, folder = job.config, job.folder
  epochs = config.stop_after_epochs or config.num_epochs
  if not (folder / 'config.json').exists():
    return Status(0, epochs)
  differing = run_folder.differences(run_folder.load_config(folder), config)
  if differing:
    return Status(0, epochs, differs='; '.join(differing))
  entries = [
      entry
      for entry in metrics_log.read_metrics(folder)
      if entry['kind'] == 'epoch'
  ]
  if not entries:
    return Status(0, epochs)
  last = entries[-1]
  summary = closing.load(folder)
  current = summary is not None and summary['steps'] == last['step']
  return Status(
      last['epoch'],
      epochs,
      complete=current and last['epoch'] >= epochs,
      val_accuracy=last.get('val_accuracy'),
      test_accuracy=summary['last'].get('test_accuracy') if current else None,
  )


def table(jobs: Iterable[Job]) -> str:
  """Returns the status of every run as text, a line each, and their number."""
  found = [(job.folder.name, *_cells(job)) for job in jobs]
  width = max((len(name) for name, *_ in found), default=0)
  lines = [f'{"":<{width}}  {"validation":>10}{"test":>9}']
  for name, figures, state in found:
    lines.append(f'{name:<{width}}  {figures[0]:>10}{figures[1]:>9}  {state}')
  done = sum(state == _COMPLETE for *_, state in found)
  return '\n'.join([*lines, f'{done} of {len(found)} runs are complete.'])


def _cells(job):
  """Returns the figures of a run and its state, or why it cannot be read."""
  try:
    status = read(job)
  except UserError as error:
    return ('-', '-'), str(error)
  figures = (status.val_accuracy, status.test_accuracy)
  return ['-' if of is None else f'{of:.2%}' for of in figures], status.state
