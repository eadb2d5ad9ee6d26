"""What the recipes in `configs/` share: every field, with its meaning and unit.

A recipe is a `ConfigDict`; each field can be overridden on the command line,
`--config.optimizer.learning_rate=3e-4`. Nothing is read that is not named here.
"""

import ml_collections
from ml_collections import config_dict


def cifar10(model_name: str) -> ml_collections.ConfigDict:
  """Returns the CIFAR-10 protocol of Table 2, for one of the named models."""
  config = ml_collections.ConfigDict()
  config.seed = 0  # of initialisation, data order, augmentation, drop path
  config.dtype = 'bfloat16'  # of the computation; parameters are float32
  config.remat = 'none'  # 'blocks', 'elementwise': less memory, more time
  config.batch_size = 128  # images per step, all devices together
  config.accumulate_steps = 1  # parts that a batch is taken in, to save memory
  config.eval_batch_size = 500  # images; changes speed only
  config.num_epochs = 50  # of the whole schedule
  config.stop_after_epochs = 0  # stop early, schedule unchanged; 0: do not
  config.eval_every_epochs = 1  # validate, save and plot
  config.checkpoint_every_steps = 0  # amid epochs too; 0: where one ends
  config.log_every_steps = 50  # the loop waits for the device this often
  config.profile_steps = ''  # 'FIRST:LAST': traced, both, to RUN/profile
  config.nan_policy = 'stop'  # or 'skip': no update from such a step
  config.steps_per_dispatch = 0  # 1: no loop, another last bit; 0: what suits
  config.compile_effort = 'full'  # on a CPU 'quick' begins sooner, steps slower

  config.ema_decay = 0.0  # of the weights' average, per 512 images; 0: none
  config.init_from = ''  # run, weights or checkpoint to start from; '': none

  config.mesh = ml_collections.ConfigDict()  # changes no result, but rounding
  config.mesh.data = 0  # devices along it; 0: those that fsdp leaves
  config.mesh.fsdp = 1  # devices that large arrays of the state are split over

  config.model = _model(model_name)

  config.data = ml_collections.ConfigDict()
  config.data.name = 'cifar10'
  config.data.dir = ''  # '': TFDS_DATA_DIR, else ~/tensorflow_datasets
  config.data.train_split = 'train[:45000]'
  config.data.val_split = 'train[45000:]'
  config.data.test_split = 'test'  # read once, at the end; '': none
  config.data.image_size = 0  # pixels, both sides; 0: as stored, all equal
  config.data.train_crop = 'resize'  # or 'random_resized', drawn each time
  config.data.crop_scale = (0.08, 1.0)  # share of the area, if it is drawn
  config.data.crop_ratio = (0.75, 4 / 3)  # width / height, likewise
  config.data.eval_crop = 0.0  # centre crop, of the resized side; 0: no crop
  config.data.repeats = 1  # repeated augmentation: copies of an image, in a row
  # Where decoded images are: 'memory', 'disk' or 'device'; 'auto': 'device' if
  # they take a tenth of an accelerator, else 'memory'; 'decode': nowhere.
  config.data.storage = 'auto'
  config.data.workers = 0  # processes that decode, for 'decode'
  config.data.label_maps = ''  # of the training split, for token labels

  config.augment = ml_collections.ConfigDict()
  config.augment.crop_padding = 4  # pixels on each side
  config.augment.flip = True  # left to right, each image at even odds
  config.augment.rand_augment_ops = 2  # drawn per image; 0: none
  config.augment.rand_augment_magnitude = 9.0  # mean, of 10
  config.augment.rand_augment_std = 0.5  # of the magnitude
  config.augment.rand_augment_prob = 0.5  # that a drawn op is applied
  config.augment.erase_prob = 0.25  # Random Erasing, per image
  config.augment.mixup_alpha = 0.8  # of Beta(alpha, alpha); 0: none
  config.augment.cutmix_alpha = 1.0  # of Beta(alpha, alpha); 0: none
  config.label_smoothing = 0.1  # probability spread over all classes
  config.token_label_weight = 0.0  # of the tokens' loss; 0: no token labels

  config.optimizer = ml_collections.ConfigDict()  # AdamW
  config.optimizer.learning_rate = 1e-4  # peak
  config.optimizer.schedule = 'cosine'  # by step; 'epochs': as RMT's, by epoch
  config.optimizer.warmup_epochs = 5.0  # linear to the peak; then cosine
  config.optimizer.warmup_learning_rate = 0.0  # where the warm-up begins
  config.optimizer.final_learning_rate = 0.0  # where the cosine ends
  config.optimizer.weight_decay = 0.05  # on kernels only
  config.optimizer.decay_layer_scale = False  # True: on LayerScale as well
  config.optimizer.b1 = 0.9
  config.optimizer.b2 = 0.999
  config.optimizer.eps = 1e-8
  # A recipe that sets a field nobody reads fails.
  return config.lock()


def digits(model_name: str) -> ml_collections.ConfigDict:
  """Returns a minute's run on the packaged 8x8 digits, for a named model.

  The model is the named one, narrower, and the training is short: what slows
  it down on purpose (drop path, smoothing, mixing) is off. The augmentation
  keeps to shifts by a pixel of the 8x8, since a mirrored digit is no digit.
  """
  config = cifar10(model_name)
  config.dtype = 'float32'
  config.batch_size = 64
  config.eval_batch_size = 100
  config.num_epochs = 12
  config.log_every_steps = 10
  _shrink(config, widths=(16, 32, 48, 64), depths=(1, 1, 2, 1))
  config.model.drop_path_rate = 0.0

  config.data.name = 'digits'
  config.data.train_split = 'train'
  config.data.val_split = 'val'
  config.data.test_split = 'test'

  config.augment.crop_padding = 4
  config.augment.flip = False
  config.augment.rand_augment_ops = 0
  config.augment.erase_prob = 0.0
  config.augment.mixup_alpha = 0.0
  config.augment.cutmix_alpha = 0.0
  config.label_smoothing = 0.0

  config.optimizer.learning_rate = 3e-3
  config.optimizer.warmup_epochs = 1.0
  return config


def mini_imagenet(model_name: str) -> ml_collections.ConfigDict:
  """Returns the Mini-ImageNet protocol of Table 2, for a large model."""
  config = cifar10(model_name)
  config.num_epochs = 40
  config.eval_batch_size = 250
  config.data.name = 'mini_imagenet'  # as `gswinrmt prepare` makes it
  config.data.train_split = 'train'
  config.data.val_split = 'val'
  config.data.test_split = 'test'
  config.data.image_size = 224  # the whole image, squeezed (section 4.1)
  config.data.storage = 'disk'  # 7.5 GB, decoded once for all runs
  config.augment.crop_padding = 0
  return config


def imagenet(model_name: str) -> ml_collections.ConfigDict:
  """Returns the training on ImageNet-1k that RMT was released with.

  Behind each field is where it is from: the script released with RMT (its
  defaults count), the training logs beside it, or the paper (arXiv 2309.11523)
  where it says otherwise; "ours" changes no result, or has no counterpart.

  Args:
    model_name: One of the released sizes, each with its own stochastic depth;
      the script's `--drop-path` has no effect.
  """
  config = cifar10(model_name)
  config.seed = 0  # ours
  config.dtype = 'bfloat16'  # ours; script: float16 with loss scaling
  config.batch_size = 2048  # logs, by the rule below; paper: 1024
  config.eval_batch_size = 500  # ours
  config.num_epochs = 300  # script
  config.stop_after_epochs = 0  # script
  config.eval_every_epochs = 1  # script
  config.log_every_steps = 50  # ours
  config.ema_decay = 0.99996  # script; 0.99984 a step at 2048

  config.data.name = 'imagenet'  # as `gswinrmt prepare imagenet` makes it
  config.data.train_split = 'train'  # script
  config.data.val_split = 'val'  # script; the best epoch is chosen on it
  config.data.test_split = ''  # the labels of the test images are secret
  config.data.image_size = 224  # script
  config.data.train_crop = 'random_resized'  # script
  config.data.crop_scale = (0.08, 1.0)  # script
  config.data.crop_ratio = (0.75, 4 / 3)  # script
  config.data.repeats = 3  # script, by default; the paper does not say
  config.data.eval_crop = 0.875  # script: resized to 256, centre of 224
  config.data.storage = 'decode'  # ours
  config.data.workers = 8  # ours

  config.augment.crop_padding = 0  # script: the crop above, instead
  config.augment.flip = True  # script
  config.augment.rand_augment_ops = 2  # script: rand-m9-mstd0.5-inc1
  config.augment.rand_augment_magnitude = 9.0  # script, likewise
  config.augment.rand_augment_std = 0.5  # script, likewise
  config.augment.rand_augment_prob = 0.5  # script, likewise
  config.augment.erase_prob = 0.25  # script
  config.augment.mixup_alpha = 0.8  # script; paper: a probability of 0.8
  config.augment.cutmix_alpha = 1.0  # script; paper: a probability of 1.0
  config.label_smoothing = 0.1  # script

  # Script: 5e-4 for 512 images. Logs: 2e-3, so 2,048 of them; the paper has
  # 1e-3 and 1024. It follows the batch unless it is set itself.
  rate = config.get_ref('batch_size').to_float() * (5e-4 / 512)
  config.optimizer.learning_rate = rate
  config.optimizer.schedule = 'epochs'  # script, logs
  config.optimizer.warmup_epochs = 5.0  # script
  config.optimizer.warmup_learning_rate = 1e-6  # script, logs
  config.optimizer.final_learning_rate = 1e-5  # script, logs
  config.optimizer.weight_decay = 0.05  # script
  config.optimizer.decay_layer_scale = True  # script: it has four axes there
  config.optimizer.b1 = 0.9  # script
  config.optimizer.b2 = 0.999  # script
  config.optimizer.eps = 1e-8  # script
  return config


def imagenet_token_labels(model_name: str) -> ml_collections.ConfigDict:
  """Returns RMT's training on ImageNet-1k with token labels, as released.

  As `imagenet` but for what is below. `config.data.label_maps` is to be set:
  the maps that the authors' teacher made are not part of the release.

  Args:
    model_name: A released size with a dense head, 'rmt_s_tl'.
  """
  config = imagenet(model_name)
  config.num_epochs = 310  # logs; script: 300
  config.token_label_weight = 0.5  # script
  config.augment.mixup_alpha = 0.0  # script
  config.augment.cutmix_alpha = 0.0  # script
  config.data.repeats = 1  # script: other loader, without repeats
  config.data.eval_crop = 0.96  # script
  return config


def with_argument(
    config: ml_collections.ConfigDict, argument: str | None
) -> ml_collections.ConfigDict:
  """Applies what stands behind the colon of `--config=FILE:ARGUMENT`.

  Args:
    config: A full recipe; its model is kept, narrower.
    argument: None for the recipe itself; 'smoke' for one epoch of a tiny model
      on the packaged digits, with the recipe's own augmentation and precision
      and quick compilation, to see in seconds that all of it runs.

  Returns:
    The recipe to run.

  Raises:
    ValueError: If the argument is another one.
  """
  if argument is None:
    return config
  if argument != 'smoke':
    raise ValueError(f"unknown argument '{argument}' (known: 'smoke')")
  small = digits(config.model.name)
  config.data = small.data
  config.batch_size = small.batch_size
  config.eval_batch_size = small.eval_batch_size
  config.log_every_steps = small.log_every_steps
  config.num_epochs = 1
  config.compile_effort = 'quick'  # which takes longer than all of its steps
  config.token_label_weight = 0.0  # there are no maps of the digits
  config.optimizer.warmup_epochs = 0.25
  _shrink(config, widths=(8, 8, 16, 16), depths=(1, 1, 1, 1))
  return config


def _model(name):
  """Returns the model's fields, each None: the named model's own value."""
  # Only here: naming the recipes, or a help text, need not wait for JAX.
  from gswinrmt_jax.models import factory

  model = ml_collections.ConfigDict()
  model.name = name
  for field, kind in factory.FIELDS.items():
    model[field] = config_dict.placeholder(kind)
  return model


def _shrink(config, *, widths, depths):
  """Narrows the named model, to the stages that it has."""
  from gswinrmt_jax.models import named

  if config.model.name in named.MODELS:  # else refused later, with its name
    stages = named.MODELS[config.model.name].stages
    widths, depths = widths[:stages], depths[:stages]
  config.model.widths = widths
  config.model.depths = depths
  config.model.num_heads = tuple(max(width // 16, 1) for width in widths)
