"""The PyTorch programs that are timed next to those of this package.

A spec is that of a model in jax_programs.py, with a 'peer':
'eager' and 'compile' are the twin, any other name is a model of timm. Its
'platform' is where JAX runs.
"""

import dataclasses
import importlib.metadata

import jax
import jax.numpy as jnp
import jax_programs
import numpy as np
import optax
import torch
from torch.nn import functional
import torch_twin
import worker

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.backbone import Backbone

_TWINS = ('eager', 'compile')
_DROP_PATH = 0.1  # as in our models
_TIMM_SIZE = 224
# Twin and model are compared on images whose size involves windows, shifts and
# odd extents.
_IMAGE, _BATCH = (72, 56, 3), 2
_TOLERANCE = 2e-4  # relative to the largest logit, and to the loss


def build(spec: worker.Spec) -> worker.Program:
  """Returns the program of a spec."""
  cuda = spec['platform'] != 'cpu'
  if cuda and not torch.cuda.is_available():
    raise RuntimeError('this PyTorch has no CUDA device')
  device = torch.device('cuda' if cuda else 'cpu')
  torch.manual_seed(0)
  torch.backends.cudnn.benchmark = True
  # XLA's default for float32 on a GPU.
  torch.set_float32_matmul_precision('high')
  model = _model(spec).to(device, memory_format=torch.channels_last)
  batch = jax_programs.random_batch(
      spec['batch'], spec['image_size'], spec['classes']
  )
  image, target = (
      torch.from_numpy(batch[name]).to(device) for name in ('image', 'target')
  )
  image = image.permute(0, 3, 1, 2)  # memory stays channels last
  autocast = torch.autocast(
      device.type, torch.bfloat16, enabled=spec['dtype'] == 'bfloat16'
  )
  wait = torch.cuda.synchronize if cuda else (lambda: None)
  make = _train if spec['task'] == 'train' else _inference
  # Latency waits for each call, throughput for the last.
  each = spec['task'] == 'latency'
  parameters = sum(p.numel() for p in model.parameters())
  if spec['peer'] == 'compile':
    with torch.no_grad():
      model.eval()(image[:1])  # builds its tables outside of the graph
    model = torch.compile(model)
  run = make(model, image, target, autocast, wait, each)
  versions = {'torch': torch.__version__}
  if spec['peer'] not in _TWINS:
    versions['timm'] = importlib.metadata.version('timm')
  facts = {
      'dtype': spec['dtype'],
      'platform': device.type,
      'device': torch.cuda.get_device_name() if cuda else 'cpu',
      'threads': torch.get_num_threads(),
      'versions': versions,
      'parameters': parameters,
      'images': spec['batch'],
  }
  return worker.Program(
      run, facts, torch.cuda.max_memory_allocated if cuda else None
  )


def _model(spec):
  if spec['peer'] in _TWINS:
    model = factory.create_model(
        spec['model'], num_classes=spec['classes'], **spec['fields']
    )
    twin = torch_twin.Twin(model.arch, model.num_classes)
    twin.load_state_dict(checked_twin(model).state_dict())
    return twin
  import timm

  if spec['image_size'] != _TIMM_SIZE:
    raise ValueError(f'it is timed at {_TIMM_SIZE} pixels only')
  return timm.create_model(
      spec['peer'], num_classes=spec['classes'], drop_path_rate=_DROP_PATH
  )


def checked_twin(model: Backbone) -> torch_twin.Twin:
  """Returns a twin with random weights that was checked to equal the model.

  Logits and loss are compared in float32 on the CPU, with running statistics
  and then with those of the batch, without stochastic depth.

  Raises:
    ValueError: If logits or loss differ.
  """
  arch = dataclasses.replace(model.arch, drop_path_rate=0.0)
  model = model.clone(arch=arch, dtype=jnp.dtype('float32'))
  twin = torch_twin.Twin(arch, model.num_classes)
  values = jax_programs.random_variables(model, _IMAGE)
  torch_twin.load(twin, values)
  rng = np.random.default_rng(1)
  image = rng.standard_normal((_BATCH, *_IMAGE), np.float32)
  target = rng.dirichlet(np.ones(model.num_classes), _BATCH).astype('float32')

  expected = {}
  for train in (False, True):
    logits = _flax_logits(model, values, image, train)
    loss = optax.softmax_cross_entropy(logits, target).mean()
    expected[train] = (np.asarray(logits), float(loss))
  for train, (logits, loss) in expected.items():
    twin.train(train)
    with torch.no_grad():
      found = twin(torch.from_numpy(image).permute(0, 3, 1, 2))
      found_loss = functional.cross_entropy(found, torch.from_numpy(target))
    _compare('logits', found.numpy(), logits)
    _compare('loss', float(found_loss), loss)
  return twin


def _flax_logits(model, values, image, train):
  def apply(values, image):
    result = model.apply(values, image, train=train, mutable=['batch_stats'])
    return result[0]

  compiled = (
      jax.jit(apply).lower(values, image)
      # The program runs once, so optimising it takes longer than it saves.
      .compile(compiler_options={'xla_backend_optimization_level': 0})
  )
  return compiled(values, image)


def _compare(name, found, expected):
  error = np.abs(found - expected).max() / np.abs(expected).max()
  if not error <= _TOLERANCE:
    raise ValueError(
        f'the twin is another model: its {name} differ by {error:.1e}'
    )


def _train(model, image, target, autocast, wait, each):
  del each
  optimizer = _adamw(model)
  model.train()

  def run(calls):
    for _ in range(calls):
      optimizer.zero_grad(set_to_none=True)
      with autocast:
        loss = functional.cross_entropy(model(image).float(), target)
      loss.backward()
      optimizer.step()
    wait()

  return run


def _adamw(model):
  """Returns a fused AdamW with weight decay only on kernels, as in ours."""
  kernels, others = [], []
  for name, parameter in model.named_parameters():
    decays = parameter.ndim > 1 and not name.endswith('decay_logit')
    (kernels if decays else others).append(parameter)
  groups = [
      {'params': kernels, 'weight_decay': 0.05},
      {'params': others, 'weight_decay': 0.0},
  ]
  return torch.optim.AdamW(groups, lr=1e-4, fused=True)


def _inference(model, image, target, autocast, wait, each):
  del target
  model.eval()

  @torch.inference_mode()
  def run(calls):
    for _ in range(calls):
      with autocast:
        model(image)
      if each:
        wait()
    wait()

  return run
