"""Flax modules that assemble the equations into models.

architecture   all components, one field each
named          the models of the papers
factory        `create_model`, `init`
backbone       stem, stages, head
stem           stem, patch embedding, downsampling
block          CPE, residual branches, LayerScale, FFN
attention      SwiGLU, rotation, attention form, LCE, gate
layers         linear layers, convolutions, LCE, norms
dense          segmentation: necks, heads, `create_segmenter`
cost           parameters and multiply-accumulates
"""

from gswinrmt_jax import fast as fast  # Registers its implementations.
