"""Tests steps that are not finite, and the memory of 2000 that are."""

import json
import pathlib

import fault_runs
import pytest
import tiny_runs

# Marks the batch of a step by its rows, so that one program serves any step.
NAN_AT = """
import jax.numpy as jnp
from gswinrmt_jax.data import batches
from gswinrmt_jax.train import augmentation
draw, make = batches.train_batches, augmentation.from_config
def marked(*what, start_step, **how):
  drawn = draw(*what, start_step=start_step, **how)
  for step, batch in enumerate(drawn, start_step + 1):
    yield {**batch, 'row': batch['row'] - 99} if step == STEP else batch
def broken(*what):
  augment = make(*what)
  def with_nan(key, batch, step):
    image, targets = augment(key, batch, step)
    return image + jnp.where(batch['row'][0] < 0, jnp.nan, 0.0), targets
  return with_nan
patch.setattr(batches, 'train_batches', marked)
patch.setattr(augmentation, 'from_config', broken)
"""


def _end(launcher, folder, step, seen, saved):
  """Checks that a run ends at a step that is not finite; returns the fault."""
  broken = NAN_AT.replace('STEP', str(step))
  status, said = launcher.run(folder, broken, **fault_runs.AVERAGED)
  last = fault_runs.last_line(said)
  assert status == 1
  assert f'not finite at step {step} (seen when reading steps {seen})' in last
  places = (folder / 'checkpoints').glob('*')
  assert sorted(int(path.name) for path in places) == saved
  assert '--config.nan_policy=skip' in last
  assert all(entry['step'] < step for entry in tiny_runs.figures(folder))
  return broken


@pytest.mark.parametrize(
    ('step', 'seen', 'saved'), [(3, '1 to 5', []), (12, '11 to 12', [6])]
)
def test_pixels_that_are_not_finite_end_the_run_before_a_checkpoint(
    launcher, tmp_path, step, seen, saved
):
  """Before the first one, and at the last step of an epoch."""
  _end(launcher, tmp_path / 'run', step, seen, saved)


def test_a_step_that_is_not_finite_can_be_skipped(launcher, unbroken, tmp_path):
  """The same command resumes with the policy, and counts skipped steps."""
  folder = tmp_path / 'run'
  broken = _end(launcher, folder, 9, '7 to 10', [6])
  skip = {**fault_runs.AVERAGED, 'nan_policy': 'skip'}
  status, said = launcher.run(folder, broken, **skip)
  assert status == 0 and 'from the checkpoint of step 6.' in said, said
  assert 'steps skipped, not finite                  1' in said
  entries = {e['step']: e for e in tiny_runs.figures(folder)}
  assert entries[10]['skipped'] == 1
  assert not any('skipped' in e for s, e in entries.items() if s != 10)
  # The learning rate follows the updates, of which there is one fewer.
  others = {e['step']: e for e in tiny_runs.figures(unbroken)}
  for step in (10, 15):
    rate, other = (e[step]['learning_rate'] for e in (entries, others))
    assert rate > other * 1.001  # it falls from step 6 on
  summary = json.loads((folder / 'summary.json').read_text())
  assert summary['skipped_steps'] == 1 and summary['steps'] == 25
  # A run with the policy from the start ends in the same state.
  other = tmp_path / 'other'
  assert launcher.run(other, broken, **skip)[0] == 0
  assert tiny_runs.checksums(other, 25) == tiny_runs.checksums(folder, 25)


WATCHED = """
import gc, json, jax, tiny, tiny_parts
# A hundred steps each epoch.
patch.setitem(tiny_parts.SPLITS, 'train', tiny.arrays(0, 400))
gc.freeze()
from gswinrmt_jax.runs import metrics_log
write_epoch = metrics_log.MetricsLog.write_epoch
def epoch(self, step, figures):
  write_epoch(self, step, figures)
  gc.collect()
  pages = int(open('/proc/self/statm').read().split()[1])
  arrays = jax.live_arrays()
  row = [step, pages * 4096, len(arrays), sum(a.nbytes for a in arrays)]
  with open(folder.parent / 'watched', 'a') as file:
    file.write(json.dumps(row) + '\\n')
patch.setattr(metrics_log.MetricsLog, 'write_epoch', epoch)
"""


@pytest.mark.skipif(
    not pathlib.Path('/proc/self/statm').exists(), reason='needs /proc'
)
def test_memory_is_flat_over_2000_steps_and_20_evaluations(launcher, tmp_path):
  status, said = launcher.run(
      tmp_path / 'run',
      WATCHED,
      num_epochs=20,
      log_every_steps=50,
      **fault_runs.AVERAGED,
  )
  assert status == 0, said
  rows = [
      json.loads(line)
      for line in (tmp_path / 'watched').read_text().splitlines()
  ]
  assert len(rows) == 20 and rows[-1][0] == 2000
  # The last row is left out: at the end there is no next batch.
  _, _, counts, sizes = zip(*rows[:-1], strict=True)
  assert len(set(counts)) == 1 and len(set(sizes)) == 1
  # Resident memory, from the fifth evaluation on: one-time costs are over.
  resident = [row[1] / 2**20 for row in rows[4:]]
  assert resident[-1] - resident[0] < 12, resident
