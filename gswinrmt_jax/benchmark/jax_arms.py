"""The programs of this package that are timed; the worker's own module.

A spec has 'task' and, for a model, 'model', 'fields', 'batch', 'image_size',
'classes', 'dtype' (None: bfloat16, on a CPU float32) and 'plain' (no
implementation of ours: XLA's own convolutions). `fed_arms` has one more task.
"""

import contextlib
import functools
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.benchmark import (
    fed_arms,
    ideal_bytes,
    variables,
    worker,
)
from gswinrmt_jax.models import cost, factory
from gswinrmt_jax.ops import backend
from gswinrmt_jax.train import optimizer
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

_PLAIN = {'depthwise_impl': 'conv', 'attention_impl': 'banded'}
_MATMUL_SIDE = {'cpu': 2048}  # elsewhere 8192
_COPIED = {'cpu': 2**26}  # floats, beyond any cache; elsewhere a GiB
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def build(spec: worker.Spec) -> worker.Program:
  """Returns the program of a spec."""
  device = jax.devices()[0]
  on_cpu = device.platform == 'cpu'
  if on_cpu:
    # What JAX 0.10 takes from its cache runs on one core.
    jax.config.update('jax_compilation_cache_dir', None)
  spec = dict(spec)
  spec['dtype'] = spec.get('dtype') or ('float32' if on_cpu else 'bfloat16')
  program = _TASKS[spec['task']](spec)
  program.facts |= {
      'dtype': spec['dtype'],
      'platform': device.platform,
      'device': device.device_kind,
      'versions': {
          name: importlib.metadata.version(name) for name in _PACKAGES
      },
  }
  peak = (device.memory_stats() or {}).get('peak_bytes_in_use')

  def read_peak():
    return device.memory_stats()['peak_bytes_in_use']

  program.device_peak = None if peak is None else read_peak
  return program


def _train(spec):
  """The update of `training.step`, without augmentation, state donated."""
  model, values, batch = _model(spec)
  schedule = optimizer.learning_rate_schedule(
      1e-4, warmup_steps=1000, total_steps=10000
  )
  tx = optimizer.make_optimizer(
      schedule, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05
  )
  step = step_lib.make_train_step(
      model, tx, lambda key, batch: (batch['image'], batch['target'])
  )
  state = state_lib.TrainState(
      step=jnp.zeros((), jnp.int32),
      params=values['params'],
      batch_stats=values['batch_stats'],
      opt_state=jax.jit(tx.init)(values['params']),
  )
  key = jax.random.key(0)
  step = _compiled(spec, jax.jit(step, donate_argnums=0), state, batch, key)
  facts = _facts(spec, model, passes=3)
  try:
    size = jnp.dtype(spec['dtype']).itemsize
    least = ideal_bytes.ideal(
        model, spec['batch'], spec['image_size'], activation=size
    )
    facts['ideal_bytes'] = least.total
  except ValueError:
    facts['ideal_bytes'] = None
  return worker.Program(_Training(step, state, batch, key), facts)


class _Training:
  """Goes on from step to step."""

  def __init__(self, step, state, batch, key):
    self._step, self._batch, self._key = step, batch, key
    self.state, self.metrics = state, None

  def __call__(self, calls):
    for _ in range(calls):
      self.state, self.metrics = self._step(self.state, self._batch, self._key)
    jax.block_until_ready((self.state, self.metrics))


def _inference(spec):
  model, values, batch = _model(spec)
  apply = jax.jit(functools.partial(model.apply, train=False))
  apply = _compiled(spec, apply, values, batch['image'])
  # A CPU would work on several calls at once.
  each = spec['task'] == 'latency' or jax.default_backend() == 'cpu'

  def run(calls):
    for _ in range(calls):
      logits = apply(values, batch['image'])
      if each:
        logits.block_until_ready()
    logits.block_until_ready()

  return worker.Program(run, _facts(spec, model, passes=1))


def _model(spec):
  fields = dict(spec['fields'], **(_PLAIN if spec.get('plain') else {}))
  model = factory.create_model(
      spec['model'],
      num_classes=spec['classes'],
      dtype=spec['dtype'],
      **fields,
  )
  size = spec['image_size']
  values = variables.random_variables(model, (size, size, 3))
  batch = variables.random_batch(spec['batch'], size, spec['classes'])
  return model, jax.device_put(values), jax.device_put(batch)


def _compiled(spec, function, *arguments):
  """Compiles; a plain model without the forms that a CPU takes."""
  plain = backend.tracing_for('gpu') if spec.get('plain') else None
  with plain or contextlib.nullcontext():
    return function.lower(*arguments).compile()


def _facts(spec, model, passes):
  size = spec['image_size']
  counted = cost.count(model, (size, size))
  return {
      'parameters': counted.parameters,
      'macs': counted.product_macs,
      'flops': 2 * counted.product_macs * passes * spec['batch'],
      'images': spec['batch'],
  }


def _matmul(spec):
  """The rate of products: `n^3` with normal numbers, in the run's dtype."""
  side = _MATMUL_SIDE.get(jax.default_backend(), 8192)
  keys = jax.random.split(jax.random.key(0))
  left, right = (
      jax.random.normal(key, (side, side), spec['dtype']) for key in keys
  )
  run = _repeated(jax.jit(jnp.matmul), left, right)
  return worker.Program(run, {'flops': 2 * side**3})


def _copy(spec):
  """The rate of memory: an array is read, and written in its place."""
  del spec
  count = _COPIED.get(jax.default_backend(), 2**28)
  array = jax.random.normal(jax.random.key(0), (count,), jnp.float32)
  step = jax.jit(lambda array: 1 - array, donate_argnums=0)

  def run(calls):
    nonlocal array
    for _ in range(calls):
      array = step(array)
    array.block_until_ready()

  return worker.Program(run, {'bytes': 2 * array.nbytes})


def _depthwise(spec):
  """One depthwise convolution, forward and backward; impl 'shift' or 'conv'."""
  rng = np.random.default_rng(0)
  shape, side = spec['shape'], spec['kernel']
  x, cotangent = (
      jnp.asarray(rng.standard_normal(shape, np.float32), spec['dtype'])
      for _ in range(2)
  )
  kernel = jnp.asarray(
      rng.standard_normal((side, side, 1, shape[-1]), np.float32)
  )

  @jax.jit
  def both(x, kernel, cotangent):
    convolve = functools.partial(ops.depthwise_conv, impl=spec['impl'])
    y, backward = jax.vjp(convolve, x, kernel)
    return y, backward(cotangent)

  run = _repeated(both, x, kernel, cotangent)
  return worker.Program(run, {'images': shape[0]})


def _repeated(function, *arguments):
  def run(calls):
    for _ in range(calls):
      result = function(*arguments)
      if jax.default_backend() == 'cpu':
        jax.block_until_ready(result)
    jax.block_until_ready(result)

  return run


_TASKS = {
    'train': _train,
    'inference': _inference,
    'latency': _inference,
    'matmul': _matmul,
    'copy': _copy,
    'depthwise': _depthwise,
    'pipeline': fed_arms.build,
}

if __name__ == '__main__':
  worker.serve(build)
