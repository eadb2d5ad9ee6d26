"""Flax modules that assemble the equations into models.

architecture   all components, one field each
named          the models of the papers
factory        `create_model`, `init`
backbone       stem, stages, downsampling, head
stem           stem, patch embedding
block          CPE, residual branches, LayerScale, FFN
attention      SwiGLU, rotation, attention form, LCE, gate
layers         linear layers, convolutions, norms
dense          segmentation and detection: necks, heads, `create_segmenter`,
               `create_detector`
nnx_bridge     a model as a Flax NNX module
cost           parameters and multiply-accumulates
"""
