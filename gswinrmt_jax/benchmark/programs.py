"""The programs of this package that are timed.

A spec has a 'task' and, for a model, 'model', 'fields', 'batch', 'image_size',
'classes', 'dtype' (None: float32 on a CPU, else bfloat16) and 'plain' (the
model as its equations are written, without faster implementations). Task
'pipeline' trains as a run does. Its spec also has 'storage' (as
`config.data.storage`; None to repeat one batch), 'workers' (None: the recipe's)
and 'dir', the data directory that `pipeline.make_data` wrote.
"""

import contextlib
import functools
import importlib.metadata
import itertools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from gswinrmt_jax import ops, recipes
from gswinrmt_jax.benchmark import pipeline, random_data, worker
from gswinrmt_jax.data import parallel
from gswinrmt_jax.models import cost, factory, layers
from gswinrmt_jax.ops import cpu_convolutions
from gswinrmt_jax.train import optimizer, schedule, setup
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

_MATMUL_SIDE = {'cpu': 2048}  # elsewhere 8192
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
_EPOCHS = 100_000  # more than any measurement reaches


def build(spec: worker.Spec) -> worker.Program:
  """Returns the program of a spec."""
  device = jax.devices()[0]
  on_cpu = device.platform == 'cpu'
  if on_cpu:
    # JAX 0.10 runs cached CPU programs on a single core.
    jax.config.update('jax_compilation_cache_dir', None)
  default = 'float32' if on_cpu else 'bfloat16'
  spec = {**spec, 'dtype': spec.get('dtype') or default}
  program = _TASKS[spec['task']](spec)
  program.facts |= {
      'dtype': spec['dtype'],
      'platform': device.platform,
      'device': device.device_kind,
      'versions': {
          name: importlib.metadata.version(name) for name in _PACKAGES
      },
  }
  if 'peak_bytes_in_use' in (device.memory_stats() or {}):
    program.device_peak = lambda: device.memory_stats()['peak_bytes_in_use']
  return program


def training_step(
    spec: worker.Spec,
) -> tuple[nn.Module, jax.stages.Wrapped, tuple[Any, ...]]:
  """Returns a model, its training step, and the step's first arguments.

  The step donates its state and does not augment. The spec may have 'remat'.
  """
  model, values, batch = _model(spec)
  rate = schedule.warmup_cosine(1e-4, warmup_steps=1000, total_steps=10000)
  tx = optimizer.adamw(rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05)
  step = step_lib.make_train_step(
      model, tx, lambda key, batch, step: (batch['image'], batch['target'])
  )
  state = state_lib.TrainState(
      step=jnp.zeros((), jnp.int32),
      params=values['params'],
      batch_stats=values['batch_stats'],
      opt_state=jax.jit(tx.init)(values['params']),
  )
  step = jax.jit(step, donate_argnums=0)
  return model, step, (state, batch, jax.random.key(0))


def _train(spec):
  model, step, (state, batch, key) = training_step(spec)
  step = _compiled(spec, step, state, batch, key)
  training = Training(step, state, itertools.repeat(batch), key)
  return worker.Program(training, _facts(spec, model, passes=3))


class Training:
  """Runs consecutive training steps; keeps the last state and metrics."""

  def __init__(self, step, state, batches, key):
    self._step, self._batches, self._key = step, batches, key
    self.state, self.metrics = state, None

  def __call__(self, calls: int) -> None:
    """Runs `calls` steps."""
    for batch in itertools.islice(self._batches, calls):
      self.state, self.metrics = self._step(self.state, batch, self._key)
    jax.block_until_ready((self.state, self.metrics))


def _inference(spec):
  model, values, batch = _model(spec)
  apply = jax.jit(functools.partial(model.apply, train=False))
  apply = _compiled(spec, apply, values, batch['image'])
  run = _repeated(apply, values, batch['image'], wait=spec['task'] == 'latency')
  return worker.Program(run, _facts(spec, model, passes=1))


def _model(spec):
  model = factory.create_model(
      spec['model'],
      num_classes=spec['classes'],
      dtype=spec['dtype'],
      remat=spec.get('remat', 'none'),
      **spec['fields'],
  )
  size = spec['image_size']
  values = random_data.random_variables(model, (size, size, 3))
  batch = random_data.random_batch(spec['batch'], size, spec['classes'])
  return model, jax.device_put(values), jax.device_put(batch)


def _compiled(spec, function, *arguments):
  plain = nn.intercept_methods(layers.plain_convolutions)
  with plain if spec.get('plain') else contextlib.nullcontext():
    return function.lower(*arguments).compile()


def _facts(spec, model, passes):
  counted = cost.count(model, (spec['image_size'],) * 2)
  return {
      'parameters': counted.parameters,
      'macs': counted.product_macs,
      'flops': 2 * counted.product_macs * passes * spec['batch'],
      'images': spec['batch'],
  }


def _repeated(function, *arguments, wait=False):
  """Returns `calls -> None`; a CPU always waits, so calls do not overlap."""
  wait = wait or jax.default_backend() == 'cpu'

  def run(calls):
    for _ in range(calls):
      result = function(*arguments)
      if wait:
        jax.block_until_ready(result)
    jax.block_until_ready(result)

  return run


def _matmul(spec):
  """The rate of matmuls of normally distributed values in the model's dtype."""
  side = _MATMUL_SIDE.get(jax.default_backend(), 8192)
  keys = jax.random.split(jax.random.key(0))
  matrices = [jax.random.normal(k, (side, side), spec['dtype']) for k in keys]
  run = _repeated(jax.jit(jnp.matmul), *matrices)
  return worker.Program(run, {'flops': 2 * side**3})


def _depthwise(spec):
  """One depthwise convolution and its gradient; 'impl' is 'shift' or 'conv'."""
  shape, side = spec['shape'], spec['kernel']
  keys = jax.random.split(jax.random.key(0), 3)
  x, cotangent = (jax.random.normal(k, shape, spec['dtype']) for k in keys[:2])
  kernel = jax.random.normal(keys[2], (side, side, 1, shape[-1]))

  compute = {'shift': cpu_convolutions.by_shifts, 'conv': ops.plain_conv}

  @jax.jit
  def both(x, kernel, cotangent):
    y, backward = jax.vjp(compute[spec['impl']], x, kernel)
    return y, backward(cotangent)

  run = _repeated(both, x, kernel, cotangent)
  return worker.Program(run, {'images': shape[0]})


def _pipeline(spec):
  """Training as in a run: one call is one step with its input pipeline."""
  run = setup.build(recipes.resolve(recipe(spec)))
  return fed_training(run, repeat=spec['storage'] is None)


def fed_training(run: setup.Setup, *, repeat: bool) -> worker.Program:
  """Returns a program that trains as a run does.

  Before each timing, it drops the batches that workers have prefetched. With
  `repeat`, it trains on the first batch in every step.
  """
  fed = run.train_batches(0)
  try:
    _, first = next(fed)
    step = run.train_step.lower(run.target, first, run.key).compile()
    state = run.init_state()
  except BaseException:
    fed.close()  # ends the workers
    raise
  batches = (batch for _, batch in fed)
  ahead = parallel.AHEAD * run.train_data.workers
  if repeat:
    fed.close()
    batches, ahead = itertools.repeat(first), 0

  def ready():
    for _ in itertools.islice(batches, ahead):
      pass

  training = Training(step, state, batches, run.key)
  facts = {'images': run.config.batch_size}
  return worker.Program(training, facts, ready=ready, close=fed.close)


def recipe(spec: worker.Spec) -> ml_collections.ConfigDict:
  """Returns the recipe of CIFAR-10 or, for larger images, Mini-ImageNet.

  It never validates and never logs metrics.
  """
  size = spec['image_size']
  small = size <= pipeline.SMALL
  make = recipes.cifar10 if small else recipes.mini_imagenet
  config = make(spec['model'])
  config.dtype, config.batch_size = spec['dtype'], spec['batch']
  config.num_epochs = config.eval_every_epochs = _EPOCHS
  config.log_every_steps = 2**31 - 1
  config.model.update(spec['fields'])
  config.data.update(
      name=pipeline.DATA,
      dir=spec['dir'],
      train_split='train',
      val_split='train[:1]',
      test_split='',
      image_size=size,
      storage=spec['storage'] or 'memory',
  )
  if spec['workers'] is not None:
    config.data.workers = spec['workers']
  return config


_TASKS = {
    'train': _train,
    'inference': _inference,
    'latency': _inference,
    'matmul': _matmul,
    'depthwise': _depthwise,
    'pipeline': _pipeline,
}
