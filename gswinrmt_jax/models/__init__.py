"""Flax modules that arrange the equations into models.

architecture   every component, a field each
named          the models of the papers, a row each
factory        `create_model`
backbone       stem, stages, head
stem           stem, patch embedding, downsampling
block          CPE, residual branches, LayerScale, FFN
attention      SwiGLU, rotation, attention form, gate
layers         linear layers, convolutions, LCE, norms
dense          segmentation: necks, heads, `create_segmenter`
cost           parameters and multiply-accumulates
"""

from gswinrmt_jax import fast as fast  # Models run its implementations.
