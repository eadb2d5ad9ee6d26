"""The models of the papers, one entry each."""

import dataclasses

from gswinrmt_jax.models import architecture

_RETENTION = architecture.Architecture()
_SWAT = dataclasses.replace(
    _RETENTION,
    score_fn='sigmoid',
    scaled=False,
    rotary='split_half',
    alibi='signed',
    gate=False,
    swiglu=True,
)
# The RMT baseline of the Gated-SwinRMT paper. The four sizes that RMT released
# have another head and no LayerNorm in the FFN.
_RMT = dataclasses.replace(
    _RETENTION,
    mlp_ratios=(3.0, 3.0, 3.0, 3.0),
    layer_scale=(0.0, 0.0, 0.0, 0.0),
    decay='fixed',
    lce='depthwise',
    gate=False,
    window_size=0,
    full_stages=(4,),
)
_RMT_RELEASED = dataclasses.replace(_RMT, head='proj', ffn_norm=False)
# RMT's attention in the skeletons of Swin and DeiT (RMT, section 4.4, "strict
# comparison"; appendix A).
_RMT_SWIN = dataclasses.replace(
    _RMT,
    widths=(96, 192, 384, 768),
    num_heads=(3, 6, 12, 24),
    mlp_ratios=(4.0, 4.0, 4.0, 4.0),
    stem='patch_norm',
    downsample='merge',
    position_conv=False,
    lce='none',
    ffn_conv=False,
    ffn_norm=False,
    drop_path_rate=0.2,
)
_LARGE = {
    'widths': (128, 256, 512, 1024),
    'depths': (2, 2, 14, 2),
    'num_heads': (4, 8, 16, 32),
    'mlp_ratios': (3.0, 3.0, 3.0, 3.0),
}

# The Gated-SwinRMT paper prints parameter counts, but no widths: widths and
# depths were inferred from the counts, and 32 channels per head is a choice.
MODELS = {
    'rmt_t': dataclasses.replace(
        _RMT_RELEASED,
        depths=(2, 2, 8, 2),
        num_heads=(4, 4, 8, 16),
        full_stages=(3, 4),
    ),
    'rmt_s': dataclasses.replace(
        _RMT_RELEASED,
        depths=(3, 4, 18, 4),
        num_heads=(4, 4, 8, 16),
        mlp_ratios=(4.0, 4.0, 3.0, 3.0),
        drop_path_rate=0.15,
    ),
    'rmt_b': dataclasses.replace(
        _RMT_RELEASED,
        widths=(80, 160, 320, 512),
        depths=(4, 8, 25, 8),
        num_heads=(5, 5, 10, 16),
        mlp_ratios=(4.0, 4.0, 3.0, 3.0),
        decay_ranges=(5.0, 5.0, 6.0, 6.0),
        layer_scale=(0.0, 0.0, 1e-6, 1e-6),
        drop_path_rate=0.4,
    ),
    'rmt_l': dataclasses.replace(
        _RMT_RELEASED,
        widths=(112, 224, 448, 640),
        depths=(4, 8, 25, 8),
        num_heads=(7, 7, 14, 20),
        mlp_ratios=(4.0, 4.0, 3.0, 3.0),
        decay_ranges=(6.0, 6.0, 6.0, 6.0),
        layer_scale=(0.0, 0.0, 1e-6, 1e-6),
        drop_path_rate=0.5,
    ),
    'rmt_deit_s': dataclasses.replace(
        _RMT_SWIN,
        widths=(384,),
        depths=(12,),
        num_heads=(6,),
        mlp_ratios=(4.0,),
        stem='patch',
        patch_size=16,
        layer_scale=(0.0,),
        decay_ranges=(6.0,),
        full_stages=(1,),
        drop_path_rate=0.1,
    ),
    'rmt_swin_t': _RMT_SWIN,
    'rmt_swin_s': dataclasses.replace(
        _RMT_SWIN, depths=(2, 2, 18, 2), drop_path_rate=0.3
    ),
    'rmt_compact': _RMT,
    'retention_compact': _RETENTION,
    'swat_compact': _SWAT,
    'rmt_large': dataclasses.replace(
        _RMT, **_LARGE | {'depths': (2, 2, 18, 2)}
    ),
    'retention_large': dataclasses.replace(_RETENTION, **_LARGE),
    'swat_large': dataclasses.replace(_SWAT, **_LARGE),
}
# Trained with token labels (RMT, Table 1, "*"); as released.
for _size in ('rmt_s', 'rmt_b', 'rmt_l'):
  MODELS[f'{_size}_tl'] = dataclasses.replace(MODELS[_size], dense_head=True)
