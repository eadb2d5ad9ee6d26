"""The programs of this package that are timed, on random data.

A spec has a 'task' and, for a model, 'model', 'fields' (of `create_model`),
'batch', 'image_size', 'classes', 'dtype' (None: float32 on a CPU, else
bfloat16), 'plain' (the model as its equations are written, without faster
implementations) and 'muon' (trained with Muon instead of AdamW).
"""

import contextlib
import functools
import importlib.metadata
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import worker

from gswinrmt_jax import ops, recipes
from gswinrmt_jax.models import cost, factory, layers
from gswinrmt_jax.ops import cpu_convolutions
from gswinrmt_jax.train import learning_rate, optimizer
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

_MATMUL_SIDE = {'cpu': 2048}  # elsewhere 8192
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


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


class Training:
  """Consecutive training steps on one batch; keeps the last state and metrics.

  A step donates its state and does not augment.
  """

  def __init__(self, spec: worker.Spec):
    """Builds the model and compiles its step."""
    self.model, values, self._batch = _model(spec)
    rate = learning_rate.warmup_cosine(
        1e-4, warmup_steps=1000, total_steps=10000
    )
    settings = recipes.defaults(spec['model']).optimizer
    settings.name = 'muon' if spec.get('muon') else 'adamw'
    tx = optimizer.from_config(settings, rate)
    step = step_lib.make_train_step(
        self.model,
        tx,
        lambda key, batch, step: (batch['image'], batch['target']),
    )
    self.state = state_lib.TrainState(
        step=jnp.zeros((), jnp.int32),
        params=values['params'],
        batch_stats=values.get('batch_stats', {}),
        opt_state=jax.jit(tx.init)(values['params']),
    )
    self.metrics, self._key = None, jax.random.key(0)
    step = jax.jit(step, donate_argnums=0)
    self.compiled = _compiled(spec, step, self.state, self._batch, self._key)

  def __call__(self, calls: int) -> None:
    """Makes `calls` steps."""
    for _ in range(calls):
      self.state, self.metrics = self.compiled(
          self.state, self._batch, self._key
      )
    jax.block_until_ready((self.state, self.metrics))


def _train(spec):
  training = Training(spec)
  facts = _facts(spec, training.model, training.compiled, passes=3)
  return worker.Program(training, facts)


def _inference(spec):
  model, values, batch = _model(spec)
  apply = jax.jit(functools.partial(model.apply, train=False))
  apply = _compiled(spec, apply, values, batch['image'])
  run = _repeated(apply, values, batch['image'], wait=spec['task'] == 'latency')
  return worker.Program(run, _facts(spec, model, apply, passes=1))


def _model(spec):
  model = factory.create_model(
      spec['model'],
      num_classes=spec['classes'],
      dtype=spec['dtype'],
      **spec['fields'],
  )
  size = spec['image_size']
  values = random_variables(model, (size, size, 3))
  batch = random_batch(spec['batch'], size, spec['classes'])
  return model, jax.device_put(values), jax.device_put(batch)


def _compiled(spec, function, *arguments):
  plain = nn.intercept_methods(layers.plain_convolutions)
  with plain if spec.get('plain') else contextlib.nullcontext():
    return function.lower(*arguments).compile()


def _facts(spec, model, compiled, passes):
  counted = cost.count(model, (spec['image_size'],) * 2)
  return {
      'parameters': counted.parameters,
      'macs': counted.product_macs,
      'flops': 2 * counted.product_macs * passes * spec['batch'],
      'temporaries': compiled.memory_analysis().temp_size_in_bytes,
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


_TASKS = {
    'train': _train,
    'inference': _inference,
    'latency': _inference,
    'matmul': _matmul,
    'depthwise': _depthwise,
}


def random_variables(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> dict[str, Any]:
  """Returns float32 variables that keep feature maps of order one.

  That suffices for timing. No parameter is 0 or 1 everywhere, so that two
  models can be compared. Initialisation under jit would take as long to compile
  as the training step. An image shape is height, width, channels.
  """
  rng = np.random.default_rng(0)
  return jax.tree.map_with_path(
      lambda path, leaf: _leaf(rng, path[-1].key, leaf.shape).astype('float32'),
      factory.variable_shapes(model, image_shape),
  )


def _leaf(rng, name, shape):
  if name == 'var':
    return rng.uniform(0.5, 1.5, shape)
  noise = rng.normal(size=shape)
  if name == 'kernel':
    # Convolutions are residual branches over smooth feature maps.
    gain = 1.0 if len(shape) == 2 else 0.6
    return gain * noise / np.sqrt(np.prod(shape[:-1]))
  centre, width = {
      'scale': (1.0, 0.3),
      'decay_logit': (1.0, 1.0),
      'attention_scale': (0.5, 0.2),
      'ffn_scale': (0.5, 0.2),
  }.get(name, (0.0, 0.3))
  return centre + width * noise


def random_batch(
    batch: int, image_size: int, num_classes: int
) -> dict[str, np.ndarray]:
  """Returns normally distributed images, labels and smoothed targets."""
  rng = np.random.default_rng(0)
  image = rng.standard_normal((batch, image_size, image_size, 3), np.float32)
  label = rng.integers(num_classes, size=batch).astype(np.int32)
  target = np.full((batch, num_classes), 0.1 / num_classes, np.float32)
  target[np.arange(batch), label] += 0.9
  return {'image': image, 'label': label, 'target': target}
