"""Every field of a config, and the conditions under which fields are read."""

from collections.abc import Mapping
import functools

from gswinrmt_jax.recipes.field import (
    ALL,
    BOXES,
    CLASSES,
    Field,
    PIXELS,
    When,
)

# The constructor says which models read a field.
_common = functools.partial(Field, tasks=ALL)
_classifier = functools.partial(Field, tasks=CLASSES)
_segmenter = functools.partial(Field, tasks=PIXELS)
_detector = functools.partial(Field, tasks=BOXES)
# A size of a detector's head.
_of_head = functools.partial(_detector, -1, at_least=-1)


def _is(path: str, *values: str) -> When:
  """Returns the condition that a field has one of these values."""
  return When(
      f'{path}={" or ".join(values)}', lambda config: config[path] in values
  )


def _above_0(*paths: str) -> When:
  """Returns the condition that one of these fields is above 0."""
  return When(
      f'{" or ".join(paths)} above 0',
      lambda config: any(config[path] > 0 for path in paths),
  )


_RANDOM_CROP = _is('data.train_crop', 'random_resized')
_DECODING = _is('data.storage', 'decode')
_RAND_AUGMENT = _above_0('augment.rand_augment_ops')
_ERASING = _above_0('augment.erase_prob')
_SOME_MIXED = _above_0('augment.mix_prob')
_MIXING = _above_0('augment.mixup_alpha', 'augment.cutmix_alpha')
_MIXED = When(
    f'{_MIXING.needs}, and {_SOME_MIXED.needs}',
    lambda config: _MIXING.holds(config) and _SOME_MIXED.holds(config),
)
_POLY = _is('optimizer.schedule', 'poly')
_DROPS = _is('optimizer.schedule', 'drops')
_FALLING = _is('optimizer.schedule', 'cosine', 'epochs', 'poly')
_WARMUP = _above_0('optimizer.warmup_epochs', 'optimizer.warmup_steps')
_DECAYING = _above_0('optimizer.weight_decay')
_DECAYING_LAYER_SCALE = When(
    f'{_DECAYING.needs} and model.layer_scale above 0',
    # In a recipe, None is the named model's.
    lambda config: (
        _DECAYING.holds(config)
        and (config.model.layer_scale is None or any(config.model.layer_scale))
    ),
)
_BACKBONE_TRAINED = When(
    "optimizer.freeze other than 'backbone'",
    lambda config: config.optimizer.freeze != 'backbone',
)
_AVERAGING = _above_0('ema_decay')
_PYRAMID = _is('segmenter.head', 'fpn')
# UperNet has an auxiliary head, unless its channels are set to 0.
_AUXILIARY = When(
    'segmenter.auxiliary_channels above 0',
    lambda config: (
        config.segmenter.head == 'uper'
        if config.segmenter.auxiliary_channels < 0
        else config.segmenter.auxiliary_channels > 0
    ),
)
_RETINA = _is('detector.head', 'retina')
_RCNN = _is('detector.head', 'mask', 'cascade')
_CASCADE = _is('detector.head', 'cascade')
_WINDOWED = When(
    'model.full_stages without one of the stages',
    lambda config: (
        len({*config.model.full_stages}) < len(config.model.widths)
    ),
)

# Keyed by path, in the order of `--help`.
FIELDS: Mapping[str, Field] = {
    # JAX's keys have 32 bits: larger seeds would repeat smaller ones.
    'seed': _common(0, 'seed of all random draws', at_most=2**32 - 1),
    'dtype': _common(
        'bfloat16',
        'dtype of the computation; parameters are float32',
        choices=('float32', 'bfloat16'),
    ),
    'remat': _common(
        'none',
        "'blocks' or 'elementwise': recompute activations to save memory",
        choices=('none', 'blocks', 'elementwise'),
        free=True,
    ),
    'batch_size': _common(128, 'images per step, over all devices', at_least=1),
    'accumulate_steps': _common(
        1, 'parts into which a batch is split, to save memory', at_least=1
    ),
    'eval_batch_size': _common(
        500,
        'images per evaluation step; changes speed only',
        at_least=1,
        free=True,
    ),
    'num_epochs': _common(50, 'epochs of the whole schedule; 0: use num_steps'),
    'num_steps': _common(0, 'steps of the whole schedule; 0: use num_epochs'),
    'stop_after_epochs': _common(
        0,
        'stop after this many epochs, a multiple of eval_every_epochs; the '
        'schedule is unchanged; 0: never',
        free=True,
    ),
    'eval_every_epochs': _common(
        1, 'epochs between validations, checkpoints and plots', at_least=1
    ),
    'checkpoint_every_steps': _common(
        0, 'steps between mid-epoch checkpoints; 0: none', free=True
    ),
    'log_every_steps': _common(50, 'steps between logs', at_least=1, free=True),
    'profile_steps': _common(
        '', "steps 'FIRST:LAST' to trace into RUN/profile", free=True
    ),
    # Free, because it has no effect until a step is not finite.
    'nan_policy': _common(
        'stop',
        "if loss or gradient is not finite: end the run, or 'skip' the update",
        choices=('stop', 'skip'),
        free=True,
    ),
    'compile_effort': _common(
        'full',
        "'quick' starts sooner on a CPU, but takes longer per step",
        choices=('full', 'quick'),
        free=True,
    ),
    'ema_decay': _common(
        0.0,
        'decay of the moving average of the weights, per 512 images; 0: none',
        below=1,
    ),
    'ema_warmup': _common(
        False,
        'begin the average with a shorter memory: a decay of at most '
        '(1 + t) / (10 + t) at step t',
        when=_AVERAGING,
    ),
    'init_from': _common('', 'run, weights or checkpoint to fine-tune'),
    'model.name': _common(
        '', 'named model; `gswinrmt summarize --all` lists them'
    ),
    'segmenter.head': _common(
        '',
        "decode head of a segmenter; '': a classifier",
        choices=('', 'fpn', 'uper'),
    ),
    'segmenter.channels': _segmenter(
        -1,
        'channels of the decode head; -1 here and below: as released',
        at_least=-1,
    ),
    'segmenter.neck_channels': _segmenter(
        -1,
        "channels of the feature pyramid of 'fpn'",
        at_least=-1,
        when=_PYRAMID,
    ),
    'segmenter.auxiliary_channels': _segmenter(
        -1, 'channels of the auxiliary head; 0: no such head', at_least=-1
    ),
    'segmenter.auxiliary_weight': _segmenter(
        0.4, "weight of the auxiliary head's loss", when=_AUXILIARY
    ),
    'segmenter.mean_over': _segmenter(
        'labelled',
        'pixels over which the loss is averaged',
        choices=('labelled', 'all'),
    ),
    'detector.head': _common(
        '',
        "head of a detector: RetinaNet, Mask R-CNN, Cascade Mask R-CNN; '': no "
        'detector',
        choices=('', 'retina', 'mask', 'cascade'),
    ),
    'detector.channels': _of_head(
        'channels of the feature pyramid; -1 here and below: as released'
    ),
    'detector.tower_channels': _of_head(
        "channels of RetinaNet's towers", when=_RETINA
    ),
    'detector.tower_depth': _of_head(
        'convolutions of a tower of RetinaNet', when=_RETINA
    ),
    'detector.rpn_channels': _of_head(
        'channels of the proposal network', when=_RCNN
    ),
    'detector.conv_channels': _of_head(
        "channels of the convolutions of a cascade's box heads", when=_CASCADE
    ),
    'detector.linear_channels': _of_head(
        'channels of the linear layers of box heads', when=_RCNN
    ),
    'detector.mask_channels': _of_head('channels of mask heads', when=_RCNN),
    'detector.anchor_scale': _detector(
        -1.0,
        'side of the smallest anchor of a level / its stride; -1: as released',
        at_least=-1,
    ),
    'detector.train_candidates': _of_head(
        'anchors of a level that compete to be proposals in training',
        when=_RCNN,
    ),
    'detector.candidates': _of_head(
        'anchors of a level that compete in evaluation'
    ),
    'detector.train_proposals': _of_head(
        'proposals of an image in training', when=_RCNN
    ),
    'detector.proposals': _of_head(
        'proposals of an image in evaluation', when=_RCNN
    ),
    'detector.roi_samples': _of_head(
        'boxes of an image that a box head is trained on', when=_RCNN
    ),
    'detector.detections': _of_head(
        'largest number of detections kept per image'
    ),
    'detector.round_extents': _detector(
        1,
        'pad images with zeros to a multiple of this many pixels; the padding '
        'counts as image; released weights need 32',
        at_least=1,
    ),
    'data.name': _common('cifar10', 'data set'),
    'data.dir': _common(
        '',
        "folder of the data sets; '': $TFDS_DATA_DIR or ~/tensorflow_datasets",
        free=True,
    ),
    'data.train_split': _common(
        'auto', "images for training; auto: the data set's own"
    ),
    'data.val_split': _common(
        'auto',
        'images for validation, which selects the best epoch; auto: the data '
        "set's own, or the last tenth of train",
    ),
    'data.test_split': _common(
        'auto',
        "images for the test after training; '': no test; auto: the data set's "
        'own, if it has any',
        free=True,
    ),
    'data.image_size': _classifier(
        0, 'height and width in pixels; 0: as stored', at_most=2048, off=0
    ),
    'data.normalization': _common(
        '',
        'data set by whose channel means and deviations images are normalised; '
        "'': the data's own, or ImageNet's",
        choices=('', 'imagenet', 'cifar10', 'digits'),
    ),
    'data.fit_within': Field(
        (0, 0),
        'upper bounds of the longer and of the shorter side, in pixels: images '
        'of a segmenter or detector are reduced or enlarged to fit both, '
        'keeping aspect ratio; (0, 0): as stored',
        at_most=8192,
        tasks=PIXELS | BOXES,
    ),
    'data.crop_size': _segmenter(
        (512, 512),
        "height and width of a segmenter's training crops, in pixels",
        at_least=1,
        at_most=4096,
    ),
    'data.mask_crop': _detector(
        112,
        'height and width of the bitmap that a mask head sees of each object',
        at_least=14,
        at_most=1024,
        when=_RCNN,
    ),
    'data.without_objects': _detector(
        True, 'train on images without objects, too'
    ),
    'data.train_crop': _classifier(
        'resize',
        'resize the whole image, or a new random crop in each epoch',
        choices=('resize', 'random_resized'),
        off='resize',
    ),
    'data.crop_scale': _classifier(
        (0.08, 1.0),
        'area of a random crop / area of the image',
        at_most=1,
        when=_RANDOM_CROP,
    ),
    'data.crop_ratio': _classifier(
        (0.75, 4 / 3), 'width / height of a random crop', when=_RANDOM_CROP
    ),
    'data.eval_crop': _classifier(
        0.0,
        'side of the centre crop / side of the image; 0: none',
        at_most=1,
        off=0.0,
    ),
    'data.repeats': _common(
        1, 'copies of each image in a batch, augmented differently', at_least=1
    ),
    'data.storage': _classifier(
        'memory',
        "where decoded images are stored; 'decode': nowhere",
        choices=('memory', 'disk', 'decode'),
        off='decode',
        free=True,
    ),
    'data.workers': _common(
        0,
        'processes that decode images; 0: threads',
        at_most=1024,
        when=_DECODING,
        free=True,
    ),
    # Free, because RUN/data.json identifies the maps themselves.
    'data.label_maps': _classifier('', 'folder of token-label maps', free=True),
    'augment.crop_padding': _classifier(
        4,
        'pixels of zeros added on each side before the random crop',
        at_most=4096,
        off=0,
    ),
    'augment.flip': _common(True, 'mirror half of the images left to right'),
    'augment.flip_vertical': _common(
        False, 'mirror half of the images top to bottom'
    ),
    'augment.multi_scale': _detector(
        False,
        "resize a detector's images to many sizes, half of them after a crop, "
        'as DETR does; sizes are shares of data.fit_within',
    ),
    'augment.resize': _segmenter(
        (0.5, 2.0),
        "factor by which a segmenter's images are resized before the crop",
    ),
    'augment.max_class_share': _segmenter(
        0.75,
        "limit on one class's share of a crop's labelled pixels, dropped after "
        'ten tries',
        at_most=1,
    ),
    'augment.photometric': Field(
        False,
        "distort a segmenter's or detector's images: brightness, contrast, "
        'saturation and hue',
        tasks=PIXELS | BOXES,
    ),
    'augment.rand_augment_set': _classifier(
        'timm',
        'library whose RandAugment is used',
        choices=('timm', 'torchvision'),
        when=_RAND_AUGMENT,
    ),
    'augment.rand_augment_ops': _classifier(
        2, 'operations per image; 0: none', off=0
    ),
    'augment.rand_augment_magnitude': _classifier(
        9.0,
        'mean magnitude: 0 to 10, with torchvision 0 to 30',
        at_most=30,
        when=_RAND_AUGMENT,
    ),
    'augment.rand_augment_std': _classifier(
        0.5, 'standard deviation of the magnitude', when=_RAND_AUGMENT
    ),
    'augment.rand_augment_prob': _classifier(
        0.5,
        'probability that a drawn operation is applied',
        at_most=1,
        when=_RAND_AUGMENT,
    ),
    'augment.erase_prob': _classifier(
        0.25, 'probability of Random Erasing', at_most=1, off=0.0
    ),
    'augment.erase_area': _classifier(
        (0.02, 1 / 3),
        'erased area / area of the image',
        at_most=1,
        when=_ERASING,
    ),
    'augment.erase_aspect': _classifier(
        (0.3, 1 / 0.3), 'height / width of the erased box', when=_ERASING
    ),
    'augment.erase_fill': _classifier(
        'noise',
        'what fills the erased box',
        choices=('noise', 'zeros'),
        when=_ERASING,
    ),
    'augment.mixup_alpha': _classifier(
        0.8, 'Mixup draws Beta(a, a); 0: no Mixup', off=0.0, when=_SOME_MIXED
    ),
    'augment.cutmix_alpha': _classifier(
        1.0, 'CutMix draws Beta(a, a); 0: no CutMix', off=0.0, when=_SOME_MIXED
    ),
    'augment.mix_prob': _classifier(
        1.0, 'share of batches that are mixed', at_most=1, when=_MIXING
    ),
    'augment.mix_off_epochs': _classifier(
        0, 'epochs without mixing at the end of the run', when=_MIXED
    ),
    'label_smoothing': _classifier(
        0.1,
        'share of the target that is spread over all classes',
        at_most=1,
        off=0.0,
    ),
    'token_label_weight': _classifier(
        0.0, 'weight of the token-label loss; 0: none', off=0.0
    ),
    'optimizer.name': _common(
        'adamw',
        'AdamW, or Muon for matrices and Adam for the other parameters',
        choices=('adamw', 'muon'),
    ),
    'optimizer.learning_rate': _common(1e-4, 'peak learning rate'),
    'optimizer.schedule': _common(
        'cosine',
        "cosine decay, set every step ('cosine') or every epoch as in RMT "
        "('epochs'), polynomial decay ('poly'), or division by ten ('drops')",
        choices=('cosine', 'epochs', 'poly', 'drops'),
    ),
    'optimizer.drop_epochs': _common(
        (8, 11),
        "epochs after which 'drops' divides the learning rate by ten",
        when=_DROPS,
    ),
    'optimizer.power': _common(1.0, "exponent of 'poly'", when=_POLY),
    'optimizer.warmup_epochs': _common(5.0, 'epochs of linear warm-up'),
    'optimizer.warmup_steps': _common(
        0, 'steps of linear warm-up, instead of warmup_epochs'
    ),
    'optimizer.warmup_learning_rate': _common(
        0.0, 'learning rate at the start of the warm-up', when=_WARMUP
    ),
    'optimizer.final_learning_rate': _common(
        0.0, 'learning rate at the end of the schedule', when=_FALLING
    ),
    'optimizer.weight_decay': _common(0.05, 'weight decay'),
    'optimizer.decay': _common(
        'kernels',
        'what weight decay applies to: kernels, all parameters, all without '
        "'norm' in their released name, or all but those of normalisation "
        'layers; never to decay logits',
        choices=('kernels', 'all', 'not_norms', 'not_norm_layers'),
        when=_DECAYING,
    ),
    'optimizer.decay_layer_scale': _common(
        False,
        'apply weight decay to LayerScale, too',
        when=_DECAYING_LAYER_SCALE,
    ),
    'optimizer.freeze': _common(
        '',
        "part of the model that keeps the weights of init_from: '' for none, "
        'the stem, all up to a stage, or the backbone, which is all but the '
        "head; its BatchNorms' statistics stay, too",
        choices=(
            '',
            'stem',
            'stage1',
            'stage2',
            'stage3',
            'stage4',
            'backbone',
        ),
    ),
    'optimizer.freeze_statistics': _common(
        False,
        'BatchNorms of the backbone keep the statistics of init_from and '
        'normalise by them: for batches of a few images',
        when=_BACKBONE_TRAINED,
    ),
    'optimizer.layer_decay': _common(
        1.0,
        'learning rate of a block / that of the next one, from the head down '
        'to the stem',
        at_most=1,
        when=_BACKBONE_TRAINED,
    ),
    'optimizer.clip_norm': _common(
        0.0,
        'limit on the l2 norm of the gradient of all parameters together; a '
        'larger gradient is scaled down to it; 0: no limit',
    ),
    'optimizer.b1': _common(0.9, 'decay of the first moment of Adam', below=1),
    'optimizer.b2': _common(
        0.999, 'decay of the second moment of Adam', below=1
    ),
    # Without it, a gradient of 0 would be divided by 0.
    'optimizer.eps': _common(
        1e-8, "added to the denominator of Adam's update", at_least=1e-30
    ),
}

# When the model reads its fields, of a resolved config; others: always.
MODEL: Mapping[str, When] = {
    'model.projection': _is('model.head', 'proj'),
    'model.drop_path_rate': _BACKBONE_TRAINED,
    'model.decay_ranges': _is('model.decay', 'fixed', 'learned'),
    'model.window_size': _WINDOWED,
    'model.shift': When(
        f'model.window_size above 1 and {_WINDOWED.needs}',
        lambda config: config.model.window_size > 1 and _WINDOWED.holds(config),
    ),
}
