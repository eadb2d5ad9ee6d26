"""One device or several."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import checkpoint, devices


def test_batches_are_placed_and_targets_keep_shape_and_dtype():
  here = devices.Devices()
  batch = here.put_batch({'image': np.ones((6, 2)), 'label': np.arange(6)})
  assert batch['label'].tolist() == list(range(6))
  target = here.target({'a': jax.ShapeDtypeStruct((2, 3), jnp.int32)})
  assert target['a'].shape == (2, 3) and target['a'].dtype == jnp.int32
  assert target['a'].sharding == here.replicated


_PROGRAM = """
import json, pathlib, sys
import jax, jax.numpy as jnp, optax
from gswinrmt_jax.training import checkpoint, devices, state, step
import tiny
here = devices.Devices()
model, tx = tiny.Tiny(), optax.sgd(0.1)
first = jax.jit(
    lambda: state.create(model, tx, jax.random.key(0), (6, 7, 3)),
    out_shardings=here.replicated,
)()
def augmentation(key, batch):
  return batch['image'] / 255.0, jax.nn.one_hot(batch['label'], tiny.CLASSES)
update = jax.jit(
    step.make_train_step(model, tx, augmentation),
    donate_argnums=0, out_shardings=here.replicated,
)
data = tiny.arrays(0, 12)
batch = here.put_batch({'image': data.image, 'label': data.label})
compiled = update.lower(first, batch, jax.random.key(1)).compile()
new, metrics = compiled(first, batch, jax.random.key(1))
new, metrics = compiled(new, batch, jax.random.key(1))
checkpoints = checkpoint.Checkpoints(pathlib.Path(sys.argv[1]))
checkpoints.save(new, accuracy=0.5, meta={})
checkpoints.close()
print(json.dumps({
    'devices': len(batch['image'].sharding.device_set),
    'split': not batch['image'].is_fully_replicated,
    'rounded': [here.rounded_up(size) for size in (1, 4, 5)],
    'state_copied': all(a.is_fully_replicated for a in jax.tree.leaves(new)),
    'loss': float(metrics['loss']),
    'mean': new.batch_stats['norm']['mean'].tolist(),
    'kernel': new.params['head']['kernel'].ravel().tolist(),
}))
"""


def _run(count, folder):
  tests = os.path.dirname(__file__)
  environment = {
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': f'--xla_force_host_platform_device_count={count}',
      'PYTHONPATH': os.pathsep.join([tests, os.path.dirname(tests)]),
  }
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM, str(folder)],
      env=environment,
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def test_four_devices_compute_what_one_does(tmp_path):
  """Also the statistics of BatchNorm, which are those of the whole batch."""
  one, four = _run(1, tmp_path / 'one'), _run(4, tmp_path / 'four')
  assert (one['devices'], four['devices']) == (1, 4)
  assert four['split'] and four['state_copied']
  assert four['rounded'] == [4, 4, 8] and one['rounded'] == [1, 4, 5]
  for name in ('loss', 'mean', 'kernel'):
    np.testing.assert_allclose(
        four[name], one[name], rtol=1e-5, atol=1e-6, err_msg=name
    )

  # What four devices saved, this process reads, weights alone.
  shapes = jax.eval_shape(
      lambda: tiny.Tiny().init(
          jax.random.key(0), jnp.zeros((1, 6, 7, 3)), train=False
      )
  )
  checkpoints = checkpoint.Checkpoints(tmp_path / 'four', read_only=True)
  restored = checkpoints.restore(2, devices.Devices().target(shapes))
  kernel = restored.tree['params']['head']['kernel']
  assert kernel.ravel().tolist() == four['kernel']


def test_a_batch_that_does_not_divide_is_refused(monkeypatch):
  here = devices.Devices()
  monkeypatch.setattr(here, '_count', 3)
  here.check_batch_size(6)
  with pytest.raises(UserError, match=r'batch_size is 7: .* of the 3 devices'):
    here.check_batch_size(7)


def test_quick_compilation_is_for_the_cpu():
  expected = jax.default_backend() == 'cpu'
  assert bool(devices.quick_compilation()) == expected
