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

# A field that may change when a run resumes.
_free = functools.partial(Field, free=True)

_RANDOM_CROP = When(
    'data.train_crop=random_resized',
    lambda config: config.data.train_crop == 'random_resized',
)
_DECODING = When(
    'data.storage=decode', lambda config: config.data.storage == 'decode'
)
_RAND_AUGMENT = When(
    'augment.rand_augment_ops above 0',
    lambda config: config.augment.rand_augment_ops > 0,
)
_ERASING = When(
    'augment.erase_prob above 0', lambda config: config.augment.erase_prob > 0
)
_SOME_MIXED = When(
    'augment.mix_prob above 0', lambda config: config.augment.mix_prob > 0
)
_MIXING = When(
    'augment.mixup_alpha or cutmix_alpha above 0',
    lambda config: config.augment.mixup_alpha or config.augment.cutmix_alpha,
)
_MIXED = When(
    f'{_MIXING.needs}, and {_SOME_MIXED.needs}',
    lambda config: _MIXING.holds(config) and _SOME_MIXED.holds(config),
)
_POLY = When(
    'optimizer.schedule=poly',
    lambda config: config.optimizer.schedule == 'poly',
)
_DROPS = When(
    'optimizer.schedule=drops',
    lambda config: config.optimizer.schedule == 'drops',
)
_FALLING = When(
    'optimizer.schedule=cosine, epochs or poly',
    lambda config: config.optimizer.schedule != 'drops',
)
_WARMUP = When(
    'optimizer.warmup_epochs or warmup_steps above 0',
    lambda config: (
        config.optimizer.warmup_epochs or config.optimizer.warmup_steps
    ),
)
_DECAYING = When(
    'optimizer.weight_decay above 0',
    lambda config: config.optimizer.weight_decay > 0,
)
_AVERAGING = When('ema_decay above 0', lambda config: config.ema_decay > 0)
_NECK = When(
    'segmenter.head=fpn', lambda config: config.segmenter.head == 'fpn'
)
# UperNet has an auxiliary head, unless its channels are set to 0.
_AUXILIARY = When(
    'segmenter.auxiliary_channels above 0',
    lambda config: (
        config.segmenter.head == 'uper'
        if config.segmenter.auxiliary_channels < 0
        else config.segmenter.auxiliary_channels > 0
    ),
)
_RETINA = When(
    'detector.head=retina', lambda config: config.detector.head == 'retina'
)
_RCNN = When(
    'detector.head=mask or cascade',
    lambda config: config.detector.head in ('mask', 'cascade'),
)
_CASCADE = When(
    'detector.head=cascade', lambda config: config.detector.head == 'cascade'
)
_WINDOWED = When(
    'model.full_stages without one of the stages',
    lambda config: len(config.model.full_stages) < len(config.model.widths),
)

# A size of a detector's head.
_of_head = functools.partial(Field, -1, at_least=-1, tasks=BOXES)

# Keyed by path, in the order of `--help`.
FIELDS: Mapping[str, Field] = {
    # JAX's keys have 32 bits: larger seeds would repeat smaller ones.
    'seed': Field(0, 'seed of all random draws', at_most=2**32 - 1, tasks=ALL),
    'dtype': Field(
        'bfloat16',
        'dtype of the computation; parameters are float32',
        choices=('float32', 'bfloat16'),
        tasks=ALL,
    ),
    'remat': _free(
        'none',
        "'blocks' or 'elementwise': recompute activations to save memory",
        choices=('none', 'blocks', 'elementwise'),
        tasks=ALL,
    ),
    'batch_size': Field(
        128, 'images per step, over all devices', at_least=1, tasks=ALL
    ),
    'accumulate_steps': Field(
        1,
        'parts into which a batch is split, to save memory',
        at_least=1,
        tasks=ALL,
    ),
    'eval_batch_size': _free(
        500,
        'images per evaluation step; changes speed only',
        at_least=1,
        tasks=ALL,
    ),
    'num_epochs': Field(
        50, 'epochs of the whole schedule; 0: use num_steps', tasks=ALL
    ),
    'num_steps': Field(
        0, 'steps of the whole schedule; 0: use num_epochs', tasks=ALL
    ),
    'stop_after_epochs': _free(
        0,
        'stop after this many epochs, a multiple of eval_every_epochs; the '
        'schedule is unchanged; 0: never',
        tasks=ALL,
    ),
    'eval_every_epochs': Field(
        1,
        'epochs between validations, checkpoints and plots',
        at_least=1,
        tasks=ALL,
    ),
    'checkpoint_every_steps': _free(
        0,
        'steps between mid-epoch checkpoints; 0: none',
        tasks=ALL,
    ),
    'log_every_steps': _free(50, 'steps between logs', at_least=1, tasks=ALL),
    'profile_steps': _free(
        '', "steps 'FIRST:LAST' to trace into RUN/profile", tasks=ALL
    ),
    # Free, because it has no effect until a step is not finite.
    'nan_policy': _free(
        'stop',
        "if loss or gradient is not finite: end the run, or 'skip' the update",
        choices=('stop', 'skip'),
        tasks=ALL,
    ),
    'compile_effort': _free(
        'full',
        "'quick' starts sooner on a CPU, but takes longer per step",
        choices=('full', 'quick'),
        tasks=ALL,
    ),
    'ema_decay': Field(
        0.0,
        'decay of the moving average of the weights, per 512 images; 0: none',
        below=1,
        tasks=ALL,
    ),
    'ema_warmup': Field(
        False,
        'begin the average with a shorter memory: a decay of at most '
        '(1 + t) / (10 + t) at step t',
        tasks=ALL,
        when=_AVERAGING,
    ),
    'init_from': Field(
        '', 'run, weights or checkpoint to fine-tune', tasks=ALL
    ),
    'mesh.data': _free(
        0, 'expected number of devices; 0: any number', tasks=ALL
    ),
    'model.name': Field(
        '',
        'named model; `gswinrmt summarize --all` lists them',
        tasks=ALL,
    ),
    'segmenter.head': Field(
        '',
        "decode head of a segmenter; '': a classifier",
        choices=('', 'fpn', 'uper'),
        tasks=ALL,
    ),
    'segmenter.channels': Field(
        -1,
        'channels of the decode head; -1 here and below: as released',
        at_least=-1,
        tasks=PIXELS,
    ),
    'segmenter.neck_channels': Field(
        -1,
        "channels of the feature pyramid of 'fpn'",
        at_least=-1,
        tasks=PIXELS,
        when=_NECK,
    ),
    'segmenter.auxiliary_channels': Field(
        -1,
        'channels of the auxiliary head; 0: no such head',
        at_least=-1,
        tasks=PIXELS,
    ),
    'segmenter.auxiliary_weight': Field(
        0.4,
        "weight of the auxiliary head's loss",
        tasks=PIXELS,
        when=_AUXILIARY,
    ),
    'segmenter.mean_over': Field(
        'labelled',
        'pixels over which the loss is averaged',
        choices=('labelled', 'all'),
        tasks=PIXELS,
    ),
    'detector.head': Field(
        '',
        "head of a detector: RetinaNet, Mask R-CNN, Cascade Mask R-CNN; '': no "
        'detector',
        choices=('', 'retina', 'mask', 'cascade'),
        tasks=ALL,
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
    'detector.anchor_scale': Field(
        -1.0,
        'side of the smallest anchor of a level / its stride; -1: as released',
        at_least=-1,
        tasks=BOXES,
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
    'detector.detections': _of_head('most detections of an image'),
    'detector.round_extents': Field(
        1,
        'pixels to a multiple of which zeros enlarge an image, as part of it; '
        'released weights need 32',
        at_least=1,
        tasks=BOXES,
    ),
    'data.name': Field('cifar10', 'data set', tasks=ALL),
    'data.dir': _free(
        '', "folder of the data sets; '': $TFDS_DATA_DIR", tasks=ALL
    ),
    'data.train_split': Field(
        'auto', "images for training; auto: the data set's own", tasks=ALL
    ),
    'data.val_split': Field(
        'auto',
        'images for validation, which selects the best epoch; auto: as above',
        tasks=ALL,
    ),
    'data.test_split': _free(
        'auto',
        "images for the test after training; '': no test; auto: as above, if "
        'there is one',
        tasks=ALL,
    ),
    'data.image_size': Field(
        0,
        'height and width in pixels; 0: as stored',
        at_most=2048,
        tasks=CLASSES,
        off=0,
    ),
    'data.normalization': Field(
        '',
        'data set by whose channel means and deviations images are normalised; '
        "'': the data's own, or ImageNet's",
        choices=('', 'imagenet', 'cifar10', 'digits'),
        tasks=ALL,
    ),
    'data.fit_within': Field(
        (0, 0),
        'longest long side and longest short side, in pixels, that images of a '
        'segmenter or detector are resized to fit, keeping aspect ratio; (0, '
        '0): as stored',
        at_most=8192,
        tasks=PIXELS | BOXES,
    ),
    'data.crop_size': Field(
        (512, 512),
        "height and width of a segmenter's training crops, in pixels",
        at_least=1,
        at_most=4096,
        tasks=PIXELS,
    ),
    'data.mask_crop': Field(
        112,
        'height and width of the bitmap that a mask head sees of each object',
        at_least=14,
        at_most=1024,
        tasks=BOXES,
        when=_RCNN,
    ),
    'data.without_objects': Field(
        True,
        'train on images without objects, too',
        tasks=BOXES,
    ),
    'data.train_crop': Field(
        'resize',
        'resize the whole image, or a new random crop in each epoch',
        choices=('resize', 'random_resized'),
        tasks=CLASSES,
        off='resize',
    ),
    'data.crop_scale': Field(
        (0.08, 1.0),
        'area of a random crop / area of the image',
        at_most=1,
        tasks=CLASSES,
        when=_RANDOM_CROP,
    ),
    'data.crop_ratio': Field(
        (0.75, 4 / 3),
        'width / height of a random crop',
        tasks=CLASSES,
        when=_RANDOM_CROP,
    ),
    'data.eval_crop': Field(
        0.0,
        'side of the centre crop / side of the image; 0: none',
        at_most=1,
        tasks=CLASSES,
        off=0.0,
    ),
    'data.repeats': Field(
        1,
        'copies of each image in a batch, augmented differently',
        at_least=1,
        tasks=ALL,
    ),
    # 'auto' is 'device' up to a tenth of an accelerator's free memory.
    'data.storage': _free(
        'auto',
        "where decoded images are stored; 'decode': nowhere",
        choices=('memory', 'disk', 'decode', 'device', 'auto'),
        tasks=CLASSES,
        off='decode',
    ),
    'data.workers': _free(
        0,
        'processes that decode images; 0: threads',
        at_most=1024,
        tasks=ALL,
        when=_DECODING,
    ),
    # Free, because RUN/data.json identifies the maps themselves.
    'data.label_maps': _free('', 'folder of token-label maps', tasks=CLASSES),
    'augment.crop_padding': Field(
        4,
        'pixels of zeros added on each side before the random crop',
        at_most=4096,
        tasks=CLASSES,
        off=0,
    ),
    'augment.flip': Field(
        True, 'mirror half of the images left to right', tasks=ALL
    ),
    'augment.flip_vertical': Field(
        False,
        "mirror half of a detector's images top to bottom",
        tasks=BOXES,
    ),
    'augment.multi_scale': Field(
        False,
        "resize a detector's images to many sizes, half of them after a crop, "
        'as DETR does; sizes are shares of data.fit_within',
        tasks=BOXES,
    ),
    'augment.resize': Field(
        (0.5, 2.0),
        "factor by which a segmenter's images are resized before the crop",
        tasks=PIXELS,
    ),
    'augment.max_class_share': Field(
        0.75,
        "limit on one class's share of a crop's labelled pixels, dropped after "
        'ten tries',
        at_most=1,
        tasks=PIXELS,
    ),
    'augment.photometric': Field(
        False,
        'distort brightness, contrast, saturation and hue',
        tasks=PIXELS,
    ),
    'augment.rand_augment_set': Field(
        'timm',
        'library whose RandAugment is used',
        choices=('timm', 'torchvision'),
        tasks=CLASSES,
        when=_RAND_AUGMENT,
    ),
    'augment.rand_augment_ops': Field(
        2, 'operations per image; 0: none', tasks=CLASSES, off=0
    ),
    'augment.rand_augment_magnitude': Field(
        9.0,
        'mean magnitude: 0 to 10, with torchvision 0 to 30',
        at_most=30,
        tasks=CLASSES,
        when=_RAND_AUGMENT,
    ),
    'augment.rand_augment_std': Field(
        0.5,
        'standard deviation of the magnitude',
        tasks=CLASSES,
        when=_RAND_AUGMENT,
    ),
    'augment.rand_augment_prob': Field(
        0.5,
        'probability that a drawn operation is applied',
        at_most=1,
        tasks=CLASSES,
        when=_RAND_AUGMENT,
    ),
    'augment.erase_prob': Field(
        0.25,
        'probability of Random Erasing',
        at_most=1,
        tasks=CLASSES,
        off=0.0,
    ),
    'augment.erase_area': Field(
        (0.02, 1 / 3),
        'erased area / area of the image',
        at_most=1,
        tasks=CLASSES,
        when=_ERASING,
    ),
    'augment.erase_aspect': Field(
        (0.3, 1 / 0.3),
        'height / width of the erased box',
        tasks=CLASSES,
        when=_ERASING,
    ),
    'augment.erase_fill': Field(
        'noise',
        'what fills the erased box',
        choices=('noise', 'zeros'),
        tasks=CLASSES,
        when=_ERASING,
    ),
    'augment.mixup_alpha': Field(
        0.8,
        'Mixup draws Beta(a, a); 0: no Mixup',
        tasks=CLASSES,
        off=0.0,
        when=_SOME_MIXED,
    ),
    'augment.cutmix_alpha': Field(
        1.0,
        'CutMix draws Beta(a, a); 0: no CutMix',
        tasks=CLASSES,
        off=0.0,
        when=_SOME_MIXED,
    ),
    'augment.mix_prob': Field(
        1.0,
        'share of batches that are mixed',
        at_most=1,
        tasks=CLASSES,
        when=_MIXING,
    ),
    'augment.mix_off_epochs': Field(
        0, 'number of last epochs without mixing', tasks=CLASSES, when=_MIXED
    ),
    'label_smoothing': Field(
        0.1,
        'share of the target that is spread over all classes',
        at_most=1,
        tasks=CLASSES,
        off=0.0,
    ),
    'token_label_weight': Field(
        0.0, 'weight of the token-label loss; 0: none', tasks=CLASSES, off=0.0
    ),
    'optimizer.name': Field(
        'adamw',
        'AdamW, or Muon for matrices and Adam for the other parameters',
        choices=('adamw', 'muon'),
        tasks=ALL,
    ),
    'optimizer.learning_rate': Field(1e-4, 'peak learning rate', tasks=ALL),
    'optimizer.schedule': Field(
        'cosine',
        "cosine decay, set every step ('cosine') or every epoch as in RMT "
        "('epochs'), polynomial decay ('poly'), or division by ten ('drops')",
        choices=('cosine', 'epochs', 'poly', 'drops'),
        tasks=ALL,
    ),
    'optimizer.drop_epochs': Field(
        (8, 11),
        "epochs after which 'drops' divides the learning rate by ten",
        tasks=ALL,
        when=_DROPS,
    ),
    'optimizer.power': Field(1.0, "exponent of 'poly'", tasks=ALL, when=_POLY),
    'optimizer.warmup_epochs': Field(
        5.0, 'epochs of linear warm-up', tasks=ALL
    ),
    'optimizer.warmup_steps': Field(
        0,
        'steps of linear warm-up, instead of warmup_epochs',
        tasks=ALL,
    ),
    'optimizer.warmup_learning_rate': Field(
        0.0,
        'learning rate at the start of the warm-up',
        tasks=ALL,
        when=_WARMUP,
    ),
    'optimizer.final_learning_rate': Field(
        0.0,
        'learning rate at the end of the schedule',
        tasks=ALL,
        when=_FALLING,
    ),
    'optimizer.weight_decay': Field(0.05, 'weight decay', tasks=ALL),
    'optimizer.decay': Field(
        'kernels',
        'what weight decay applies to: kernels, all parameters, all without '
        "'norm' in their released name, or all but those of normalisation "
        'layers; never to decay logits',
        choices=('kernels', 'all', 'not_norms', 'not_norm_layers'),
        tasks=ALL,
        when=_DECAYING,
    ),
    'optimizer.decay_layer_scale': Field(
        False,
        'apply weight decay to LayerScale, too',
        tasks=ALL,
        when=_DECAYING,
    ),
    'optimizer.freeze': Field(
        '',
        "what keeps the weights of init_from: '', the stem, all up to a stage, "
        "or the backbone, which is all but the head; its BatchNorms' "
        'statistics stay, too',
        choices=(
            '',
            'stem',
            'stage1',
            'stage2',
            'stage3',
            'stage4',
            'backbone',
        ),
        tasks=ALL,
    ),
    'optimizer.layer_decay': Field(
        1.0,
        'learning rate of a block / that of the next one, from the head down '
        'to the stem',
        at_most=1,
        tasks=ALL,
    ),
    'optimizer.b1': Field(
        0.9, 'decay of the first moment of Adam', below=1, tasks=ALL
    ),
    'optimizer.b2': Field(
        0.999, 'decay of the second moment of Adam', below=1, tasks=ALL
    ),
    'optimizer.eps': Field(
        1e-8, "added to the denominator of Adam's update", tasks=ALL
    ),
}

# When the model reads its fields, of a resolved config; others: always.
MODEL: Mapping[str, When] = {
    'model.projection': When(
        'model.head=proj', lambda config: config.model.head == 'proj'
    ),
    'model.decay_ranges': When(
        'model.decay=fixed or learned',
        lambda config: config.model.decay != 'none',
    ),
    'model.window_size': _WINDOWED,
    'model.shift': When(
        f'model.window_size above 1 and {_WINDOWED.needs}',
        lambda config: config.model.window_size > 1 and _WINDOWED.holds(config),
    ),
}
