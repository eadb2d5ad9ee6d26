"""The loss of token labels, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.augment import mix
from gswinrmt_jax.train import token_loss

B, H, W, K = 4, 3, 5, 6


def _cross_entropy(logits, target):
  """Of one distribution, in float64."""
  logits = np.asarray(logits, np.float64)
  log_p = logits - np.log(np.exp(logits).sum())
  return -sum(float(t) * p for t, p in zip(target, log_p, strict=True))


def test_the_loss_against_loops():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(B, K)).astype(np.float32)
  dense = rng.normal(size=(B, H, W, K)).astype(np.float32)
  of_image = rng.dirichlet(np.ones(K), B).astype(np.float32)
  of_tokens = rng.dirichlet(np.ones(K), (B, H, W)).astype(np.float32)

  def apply(image, *, box, method):
    assert image == 'image' and method == 'class_and_dense_logits'
    return (jnp.asarray(logits), jnp.asarray(dense)), {'box': box}

  @jax.jit
  def run(key):
    targets = jnp.asarray(of_image), jnp.asarray(of_tokens)
    drawn = mix.token_box(key, height=H, width=W)
    return drawn, token_loss.token_loss(
        apply, 'image', targets, key, weight=0.5
    )

  for seed in (0, 1):
    box, (loss, (found, updates)) = jax.device_get(run(jax.random.key(seed)))
    np.testing.assert_array_equal(found, logits)
    np.testing.assert_array_equal(updates['box'], box)
    assert box.shape == (H, W)
    taken = box.sum() / (H * W)
    expected = 0.0
    for i in range(B):
      mixed = (1 - taken) * of_image[i] + taken * of_image[i ^ 1]
      expected += _cross_entropy(logits[i], mixed) / B
      for y, x in np.ndindex(H, W):
        token = _cross_entropy(dense[i, y, x], of_tokens[i, y, x])
        expected += 0.5 * token / (B * H * W)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert 0 < taken < 1 or seed  # so that the mixing counts
