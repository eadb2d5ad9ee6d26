"""Where batches and states go; several devices are tested in `mesh_test`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError


def test_batches_are_placed_and_targets_keep_shape_and_dtype():
  here = mesh.Devices()
  batch = here.put_batch({'image': np.ones((6, 2)), 'label': np.arange(6)})
  assert batch['label'].tolist() == list(range(6))
  steps = here.put_steps({'label': np.arange(6).reshape(2, 3)})
  assert steps['label'].tolist() == [[0, 1, 2], [3, 4, 5]]
  target = here.target({'a': jax.ShapeDtypeStruct((2, 3), jnp.int32)})
  assert target['a'].shape == (2, 3) and target['a'].dtype == jnp.int32
  assert target['a'].sharding == here.replicated


@pytest.mark.parametrize(
    ('shape', 'split'),
    [
        ((2**15,), ()),  # small: joined with others for the gradient's norm
        ((2**15 + 2,), ('fsdp',)),
        ((256, 512), (None, 'fsdp')),
        ((512, 256), ('fsdp',)),
        ((256, 256), (None, 'fsdp')),  # of equally long ones the last
        ((3, 3, 100, 101), (None, None, 'fsdp')),  # 101 is longer, and odd
        ((201, 301), ()),  # nothing that 2 divides
        ((), ()),
    ],
)
def test_large_arrays_are_split_in_their_longest_dimension(
    shape, split, monkeypatch
):
  here = mesh.Devices()
  monkeypatch.setattr(here, '_fsdp', 2)
  array = jax.ShapeDtypeStruct(shape, jnp.float32)
  assert tuple(here.shardings({'a': array})['a'].spec) == split
  assert tuple(here.target(array).sharding.spec) == split


@pytest.mark.parametrize(('data', 'fsdp'), [(2, 1), (0, 2), (1, 0), (-1, 1)])
def test_a_mesh_that_is_not_of_all_devices_is_refused(data, fsdp):
  message = f'mesh.data is {data} and config.mesh.fsdp {fsdp}: .* must be 1,'
  with pytest.raises(UserError, match=message):
    mesh.Devices(data, fsdp)
  assert mesh.Devices(1, 1).replicated.mesh.shape == {'data': 1, 'fsdp': 1}


def test_a_batch_that_does_not_divide_into_pairs_is_refused(monkeypatch):
  here = mesh.Devices()
  here.check_batch_size(7)
  with pytest.raises(UserError, match='accumulate_steps is 0: must be at lea'):
    here.check_batch_size(6, accumulate_steps=0)
  with pytest.raises(UserError, match=r'batch_size is 6: .* multiple of 4, '):
    here.check_batch_size(6, accumulate_steps=2)
  monkeypatch.setattr(here, '_count', 3)
  here.check_batch_size(6)
  with pytest.raises(UserError, match=r'batch_size is 9: .* of 3 devices'):
    here.check_batch_size(9)
  with pytest.raises(UserError, match=r'multiple of 12, .*accumulate_steps=2'):
    here.check_batch_size(6, accumulate_steps=2)
  assert [here.rounded_up(size) for size in (1, 3, 4)] == [3, 3, 6]


def test_quick_compilation_is_for_the_cpu():
  options = mesh.quick_compilation()
  assert bool(options) == (jax.default_backend() == 'cpu')
  # XLA refuses options that it does not have.
  assert jax.jit(lambda x: x + 1, compiler_options=options)(1) == 2
