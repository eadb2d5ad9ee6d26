"""The end of a run: what its last and its best checkpoint are worth."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.runs import run_folder
from gswinrmt_jax.runs import summary as closing
from gswinrmt_jax.train import inputs, setup, train_state


def finish(
    of: setup.Parts,
    folder: pathlib.Path,
    checkpoints: checkpointer.Checkpointer,
    last: train_state.TrainState,
    entries: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
  """Sums up a run in `summary.json`.

  The test split, if there is one, is read here, once, at the end of the whole
  schedule: a run that stops early is judged on validation data alone.

  Args:
    of: The run's parts.
    folder: Its folder.
    checkpoints: Among them the best.
    last: The state after the last step.
    entries: Of its log.

  Returns:
    The summary.
  """
  checkpoints.wait()
  step = int(last.step)
  best = checkpoints.restore_best(of.target.saved_weights)
  tested = {}
  split = of.config.data.test_split
  if step == of.plan.total_steps and split:
    data = inputs.load_eval(of.config, split)
    tested[step] = of.evaluate(last.saved_weights, data)
    if best.step != step:
      tested[best.step] = of.evaluate(best.tree, data)
  summary = closing.summarize(
      of.config, of.plan, entries, tested, last=step, best=best.step
  )
  summary['parameters'] = closing.parameter_count(last)
  if processes.is_first():
    run_folder.write_json(folder / 'summary.json', summary)
  return summary
