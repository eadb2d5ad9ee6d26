"""A pass over a data set counts every image once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.evals import evaluator


def _normalize(image):
  return image / 255.0


def _variables(shape=(6, 7, 3)):
  init = jax.jit(functools.partial(tiny.Tiny().init, train=False))
  return init(jax.random.key(0), jnp.zeros((1, *shape)))


def test_a_few_results_are_under_way():
  begun = []

  def results():
    for number in range(20):
      begun.append(number)
      yield {'number': jnp.array(number)}

  for number, found in enumerate(evaluator.fetched(results())):
    assert isinstance(found['number'], np.ndarray)
    assert found['number'] == number
    assert len(begun) == min(number + 9, 20)
  assert number == 19


def test_padding_is_ignored_whatever_the_batch_size():
  data, variables = tiny.arrays(0, 11), _variables()
  eval_step = jax.jit(evaluator.make_eval_step(tiny.Tiny(), _normalize))

  def figures(batch_size):
    batches = batches_lib.eval_batches(data, batch_size=batch_size)
    return evaluator.evaluate(eval_step, variables, batches)

  whole = figures(11)
  for parted in (figures(4), figures(1)):
    assert whole['count'] == parted['count'] == 11
    assert whole['confusion'] == parted['confusion']
    assert np.isclose(whole['loss'], parted['loss'], rtol=1e-6)
  logits = tiny.Tiny().apply(variables, data.image / 255.0, train=False)
  assert whole['accuracy'] == np.mean(logits.argmax(-1) == data.label)
