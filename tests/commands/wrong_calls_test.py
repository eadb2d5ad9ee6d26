"""Tests that wrong calls give status 2 and one line that says what to do."""

import functools
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

import gswinrmt_jax
from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import classifier, export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import load

_TESTS = pathlib.Path(__file__).parents[1]
_DIGIT = str(_TESTS.parent / 'examples' / 'images' / 'digit_4.png')


@pytest.fixture(scope='module', name='place')
def _place(tmp_path_factory):
  """Returns a folder with a run, damaged copies of it, and other files."""
  folder = tmp_path_factory.mktemp('place')
  run = shutil.copytree(_TESTS / 'fixtures' / 'golden_run', folder / 'run')
  shutil.copytree(run, folder / 'cut')
  (folder / 'cut' / 'config.json').write_text('{"a": ')
  shutil.copytree(run, folder / 'none')
  shutil.rmtree(folder / 'none' / 'checkpoints')
  for name in ('empty', 'other', 'images/one'):
    (folder / name).mkdir(parents=True)
  (folder / 'other' / 'config.json').write_text('{"x": 1}')
  shutil.copy(_DIGIT, folder / 'images' / 'one')
  layouts = {
      'own': [f'{name}/{i}' for name in ('ant', 'bee') for i in range(8)],
      'few': ['ant/0', 'bee/0'],
      'twice': ['train/ant/0', 'train/bee/0', 'val/ant/0', 'valid/ant/0'],
      'untrained': ['val/ant/0', 'val/bee/0'],
      'extra': ['train/ant/0', 'train/bee/0', 'val/cat/0'],
      'half': ['ant/0'],
  }
  for name, files in layouts.items():
    for file in files:
      path = folder / name / f'{file}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(_DIGIT, path)
  (folder / 'half' / 'bee').mkdir()
  (folder / 'half' / 'bee' / 'x.txt').write_text('x')
  (folder / 'bad.py').write_text('def get_config(arg): return 1 / 0')
  (folder / 'none.py').write_text('x = 1')
  (folder / 'notes.txt').write_text('x')
  (folder / 'cut.png').write_bytes(pathlib.Path(_DIGIT).read_bytes()[:60])
  (folder / 'w.safetensors').write_bytes(b'abc' * 10)
  (folder / 'w.pth').write_bytes(b'PK\x03\x04garbage')
  return folder


_from_run = load._from_run


@functools.cache
def _restored(folder, step, which):
  """Restores weights of a run once; what cannot be restored fails each time."""
  return _from_run(folder, step, which, print)


@pytest.fixture(autouse=True)
def _inside(place, monkeypatch):
  """Enters the folder; errors must be found before a model runs."""

  def computed(*args, **how):
    raise AssertionError('a model ran')

  monkeypatch.chdir(place)
  monkeypatch.setenv('TFDS_DATA_DIR', str(place / 'tfds'))
  monkeypatch.setattr(load, '_from_run', lambda *run: _restored(*run[:3]))
  monkeypatch.setattr(classifier, '_apply', computed)
  monkeypatch.setattr(export, 'model_logits', computed)


_RECIPE = 'train --config=digits_rmt --workdir=new'
_FOLDER = 'train --config=folder --workdir=new --config.data.name='


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        ('train --config=notes.txt', 'must be a Python file, NAME.py, or one'),
        ('train --config=digits_rmt:smok', "digits_rmt.py: unknown argument '"),
        (f'{_RECIPE} extra', "'extra': arguments are --NAME=VALUE (--help"),
        (f'{_RECIPE} --epochs=3', '(did you mean --config.num_epochs?)'),
        (f'{_RECIPE} --config.epochs=3', 'did you mean --config.num_epochs?'),
        (f'{_RECIPE} --config.optimizer.lr=1', 'optimizer.learning_rate?)'),
        (f'{_RECIPE} --config.wd=1', 'did you mean --config.optimizer.weight_'),
        (
            f'{_RECIPE} --config.augment.rand_augment_set=timn',
            "is 'timn': must be 'timm' or 'torchvision' (did you mean timm?)",
        ),
        (f'{_RECIPE} --config.dtype=bf16', '(did you mean bfloat16?)'),
        (
            f'{_RECIPE} --config.num_epochs=many',
            '--config.num_epochs=many: must be a whole number',
        ),
        (
            f'{_RECIPE} --config.model.name=rmt_compct',
            "config.model: No model is called 'rmt_compct' (did you mean rmt_",
        ),
        (
            f'{_RECIPE} --config.model.depths=2',
            'config.model, rmt_compact: depths=(2,) needs 4 entries',
        ),
        (f'{_RECIPE} --config.data.name=cifar11', 'did you mean cifar10?'),
        (f'{_RECIPE} --config.data.train_split=trian', "no split 'trian': it"),
        ('train --config=digits_rmt --workdir=gs://a/b', 'gs://a/b is an addr'),
        (
            'train --config=digits_rmt --workdir=hf-hub:a/b',
            'hf-hub:a/b is a repository of the Hugging Face Hub: name a file ',
        ),
        (
            'export run --format safetensors --out hf-hub:a/b',
            'folder of this machine (`gswinrmt push` uploads a run)',
        ),
        ('evaluate s3://a/b', 's3://a/b is an address: name a file or folder'),
        ("predict run ''", 'a path is empty: is a variable of the shell not'),
        ("evaluate ''", 'a path is empty: is a variable of the shell not set'),
        ("predict run x.png --out ''", 'a path is empty: is a variable of the'),
        ('evaluate ~no_one/run', '~no_one/run does not exist: name a run fol'),
        ('convert ~no_one/rmt.pth out', '~no_one/rmt.pth does not exist'),
        ('export run --format onx --out ~no_one/x', '(did you mean onnx?)'),
        (f'{_FOLDER}~no_one/x --config.data.dir=~no_one', '~no_one/x does n'),
        (f'{_FOLDER}own --config.init_from=~no_one/x', '~no_one/x does not'),
        (f'{_FOLDER}own --config.init_from=gs://a/b', 'gs://a/b is an address'),
        (f'{_FOLDER}x --config.data.dir=gs://a/b', 'gs://a/b is an address'),
        (
            'prepare segmentation new --images own --labels own --dir gs://a/b',
            'gs://a/b is an address: name a file or folder of this machine',
        ),
        (
            'prepare segmentation new --images own --labels gs://a/b',
            'gs://a/b is an address: name a file or folder of this machine',
        ),
        (
            'prepare segmentation new --images own --labels own --classes x',
            'x cannot be read: No such file or directory',
        ),
        (
            f'prepare segmentation new --images own --labels own --classes '
            f'{_DIGIT}',
            'digit_4.png cannot be read: it is not text in UTF-8',
        ),
        (
            'prepare cifar10 --archive=~/none.tar.gz',
            f'cannot read the archive {os.path.expanduser("~")}/none.tar.gz',
        ),
        ('evaluate ~/none', f'{os.path.expanduser("~")}/none does not exist'),
        (
            'train --config=bccd --config.data.name=.',
            'prepare the data with `gswinrmt prepare detection NAME`',
        ),
        (
            f'{_RECIPE} --config.optimizer.power=2.0',
            'power is 2.0 but has no effect: it needs config.optimizer.schedul',
        ),
        (f'{_RECIPE} --config.init_from=nowhere', 'nowhere does not exist: na'),
        (f'{_RECIPE} --coordinator=a:1', 'missing: --coordinator, --proces'),
        ('train --config=digits_rmt --workdir=run', 'more; choose another --w'),
        (
            'train --config=digits_rmt --workdir=notes.txt',
            'Not a directory; c',
        ),
        ('train --config=imagenet_rmt:s', 'run `gswinrmt prepare imagenet --'),
        ('evaluate empty', 'empty is neither a run folder, such as runs/NAME,'),
        ('evaluate run/checkpoints', 'no config.json (did you mean run?)'),
        ('evaluate .', 'no config.json (did you mean '),
        ('evaluate cut', 'cut/config.json cannot be read: Expecting value'),
        ('evaluate none', 'none has no checkpoints yet'),
        ('evaluate other', 'other/config.json is not the recipe of a run'),
        ('evaluate notes.txt', 'notes.txt does not hold weights: name a run'),
        ('evaluate w.safetensors', 'w.safetensors is damaged: '),
        ('evaluate w.pth', 'w.pth is not a PyTorch checkpoint, or it is trunc'),
        ('evaluate digts_small', 'exist (did you mean digits_small?)'),
        ('evaluate run --data cifar10', 'has airplane, automobile, bird ...: '),
        ('evaluate run --split tset', "digits has no split 'tset': it has tr"),
        ('evaluate run --step 7', 'no checkpoint 7 in '),
        (
            'predict digits_small x.png --weights ema',
            'gswinrmt: digits_small is not a run: it has no averages to choos',
        ),
        ('evaluate run --out empty', 'cannot write empty: it is a folder'),
        ('evaluate run --out notes.txt/x', 'cannot write notes.txt/x: '),
        (f'predict {_DIGIT} run', 'is an image: the run or weights come first'),
        ('predict run x.png --maps notes.txt', 'txt/image.png: a file is'),
        ('predict run x.png --point 3', "--point is '3': must be X,Y such as"),
        ('predict hf-hub:foo x.png', 'not name a repository: must be hf-hub:O'),
        ('export run --format onx', 'stablehlo or onnx (did you mean onnx?)'),
        ('export run --format torch', 'Choose another --format.'),
        (
            'export run --format safetensors --out other',
            'other/config.json was not written by an export: choose another',
        ),
        (
            'export run --format safetensors --out notes.txt',
            'cannot write notes.txt/model.safetensors: ',
        ),
        ('convert run out', 'run cannot be read: Is a directory'),
        ('push run digits', 'digits does not name a repository: must be OWNER'),
        ('push digits_small me/x', 'digits_small is not a run: push uploads'),
        ('label-maps run maps --data digits', 'must be a token-label model, s'),
        ('analyze run empty', 'empty is neither a run folder'),
        ('prepare folder images', 'has 1 class folder: two or'),
        ('prepare folder no', 'folder no: no such directory'),
        ('summarize run', "no model 'run'; there are rmt_t, rmt_s, "),
        (
            f'{_RECIPE} --config.seed=-1',
            'config.seed is -1: must be from 0 to 4,294,967,295',
        ),
        (
            f'{_RECIPE} --config.seed=1.5',
            '--config.seed=1.5: must be a whole number',
        ),
        (
            f'{_RECIPE} --config.batch_size=0',
            'config.batch_size is 0: must be at least 1, at most',
        ),
        (
            f'{_RECIPE} --config.batch_size=x',
            '--config.batch_size=x: must be a whole number',
        ),
        (
            f'{_RECIPE} --config.num_epochs=0',
            'is 0 and config.num_steps 0: set exactly one of them',
        ),
        (
            f'{_RECIPE} --config.num_steps=3',
            'is 12 and config.num_steps 3: set exactly one of them',
        ),
        (
            f'{_RECIPE} --config.optimizer.learning_rate=fast',
            'rate=fast: must be a number',
        ),
        (
            f'{_RECIPE} --config.optimizer.learning_rate=-1',
            'rate is -1.0: must be at least 0',
        ),
        (
            f'{_RECIPE} --config.optimizer.learning_rate=nan',
            'rate is nan: must be at least 0',
        ),
        (
            f'{_RECIPE} --config.optimizer.name=sgd',
            "is 'sgd': must be 'adamw' or 'muon'",
        ),
        (
            f'{_RECIPE} --config.optimizer=sgd',
            'config.optimizer is a group of fields: b1, b2, decay',
        ),
        (
            f'{_RECIPE} --config.optimizer.freeze=stem',
            'without config.init_from: random weights would be',
        ),
        (
            f'{_RECIPE} --config.optimizer.freeze=stag --config.init_from=x',
            "is 'stag': must be '' or 'stem' or 'stage1'",
        ),
        (
            f'{_FOLDER}own --config.init_from=cifar10_small'
            ' --config.optimizer.freeze=stage4 --config.model.depths=(1,1,1)',
            "freeze is 'stage4': the model has stage1 to stage3",
        ),
        (
            f'{_RECIPE} --config.optimizer.layer_decay=1.5',
            'layer_decay is 1.5: must be from 0 to 1',
        ),
        (
            f'{_RECIPE} --config.optimizer.layerdecay=0.7',
            'did you mean --config.optimizer.layer_decay?',
        ),
        (
            f'{_RECIPE} --config.ema_warmup=True',
            'has no effect: it needs config.ema_decay above 0',
        ),
        (
            f'{_RECIPE} --config.ema_warmup=yes',
            '--config.ema_warmup=yes: must be True or False',
        ),
        (
            f'{_RECIPE} --config.ema_decay=1',
            'config.ema_decay is 1.0: must be at least 0 and below',
        ),
        (
            f'{_RECIPE} --config.ema=0.9',
            'there is no config field ema (did you mean --config.e',
        ),
        (
            f'{_RECIPE} --config.data.normalization=image',
            "is 'image': must be '' or 'imagenet' or",
        ),
        (
            f'{_RECIPE} --config.normalize=imagenet',
            'did you mean --config.data.normalization?',
        ),
        (
            f'{_RECIPE} --config.data.image_size=-3',
            'image_size is -3: must be from 0 to 2,048',
        ),
        (
            f'{_RECIPE} --config.data.image_size=(32,32)',
            'size=(32,32): must be a whole number',
        ),
        (
            f'{_RECIPE} --config.augment.mixup=0.8',
            'did you mean --config.augment.mix_prob?',
        ),
        (
            f'{_RECIPE} --config.augment.crop_scale=1',
            'did you mean --config.data.crop_scale?',
        ),
        (
            f'{_RECIPE} --config.model.window=7',
            'did you mean --config.model.window_size?',
        ),
        (
            f'{_RECIPE} --config.model.window_size=-1',
            'window_size=-1 must not be negative',
        ),
        (
            f'{_RECIPE} --config.model.name=resnet50',
            "No model is called 'resnet50'; there are rete",
        ),
        (
            f'{_RECIPE} --config.segmenter.head=fcn',
            "is 'fcn': must be '' or 'fpn' or 'uper'",
        ),
        (
            f'{_RECIPE} --config.segmenter.channels=32',
            'is 32: must be -1 without config.segmenter.h',
        ),
        (
            f'{_RECIPE} --config.data.test_split=none',
            "test_split: digits has no split 'none': it",
        ),
        (
            f'{_RECIPE} --config.data.name=images',
            'has 1 class folder: two or more are needed',
        ),
        (
            f'{_RECIPE} --config.data.name=digit_masks',
            'is a data set for segmentation: classificat',
        ),
        (
            f'{_RECIPE} --config.init_from=rmt_t',
            'rmt_t is a model without trained weights here: create',
        ),
        (
            f'{_RECIPE} --config.init_from=w.pth',
            'w.pth is not a PyTorch checkpoint, or it is truncated',
        ),
        (
            f'{_RECIPE} --config.profile_steps=3',
            "is '3': must be FIRST:LAST, two numbers of steps",
        ),
        (
            f'{_RECIPE} --config.stop_after_epochs=99',
            'is 99: must be at most config.num_epochs, 12',
        ),
        (
            f'{_RECIPE} --config.mesh.data=3',
            'must be 1, the number of devices, or 0',
        ),
        (
            f'{_RECIPE} --config.accumulate_steps=7',
            'must be a multiple of 14, two images for each of',
        ),
        (
            f'{_RECIPE} --config.token_label_weight=0.5',
            'token labels need both, other training neither',
        ),
        (
            f'{_FOLDER}nowhere',
            "unknown data set 'nowhere'; built in: digits, digit_masks",
        ),
        (
            f'{_FOLDER}empty',
            'empty has 0 class folders: two or more are needed',
        ),
        (
            f'{_FOLDER}few',
            'test would get nothing, as 0.1 of every class is less than half',
        ),
        (
            f'{_FOLDER}half',
            'half/bee has no image to train with, only .txt 1: remove it',
        ),
        (
            f'{_FOLDER}twice',
            'twice has both val/ and valid/, which mean val: remove or',
        ),
        (
            f'{_FOLDER}untrained',
            'untrained has val/ but no train/ with a folder of images',
        ),
        (
            f'{_FOLDER}extra',
            "extra: train has no class 'cat', but another split has",
        ),
        (
            f'{_FOLDER}own --config.init_from=digts_small',
            '(did you mean digits_small?)',
        ),
        (
            f'{_FOLDER}own --config.init_from=w.pth',
            'w.pth has no config.json beside it, which',
        ),
        (
            f'{_FOLDER}own --config.init_from=other',
            'not the recipe of a run: it names no mo',
        ),
        (
            f'{_FOLDER}own --config.data.val_split=dev',
            "own has no split 'dev', or it is emp",
        ),
        (
            f'{_FOLDER}own --config.data.train_split=train[:0%]',
            "split 'train[:0%]', or it",
        ),
        (
            f'{_FOLDER}own --config.optimizer.freeze=backbone',
            'without config.init_from: ran',
        ),
        ('train', '--config is missing'),
        ('train --config=', '--config needs a value'),
        (
            'train --config=nowhere',
            'no config file nowhere; `gswinrmt train --help` lists the recipes',
        ),
        (
            'train --config=bad.py',
            'bad.py: ZeroDivisionError: division by zero',
        ),
        (
            'train --config=none.py',
            "none.py: AttributeError: module 'recipe' has no",
        ),
        (
            'train --config=camvid:rm',
            "the model 'rm' is unknown: name one of rmt, r",
        ),
        ('train digits_rmt', 'did you mean --config=digits_rmt?'),
        (
            'train --config=folder',
            '--config.data.name is missing: name a folder of',
        ),
        (
            'train --config=folder:own',
            "folder.py: unknown argument 'own' (known: 's",
        ),
        ('evaluate', 'the following arguments are required: RUN_OR_WEIGHTS'),
        (
            'evaluate run --split',
            '--split: expected one argument (gswinrmt evalua',
        ),
        ('evaluate run --spilt val', '--spilt val (did you mean --split?)'),
        (
            'evaluate run --data own',
            'has 10 classes, own has 2: choose a data set',
        ),
        (
            'evaluate run --weights ema',
            'run has no average of its weights: it was',
        ),
        (
            'evaluate run --weights avg',
            "--weights is 'avg': must be raw or ema",
        ),
        (
            'evaluate run --batch-size 0',
            "--batch-size is '0': must be a whole num",
        ),
        (
            'evaluate digits_small --step 3',
            'gswinrmt: digits_small is not a run: it has no steps to choose fr',
        ),
        ('predict run', 'no image is named: gswinrmt predict RUN_OR_WEI'),
        ('predict one.png', 'one.png is an image: the run or weights come'),
        ('predict run empty', 'empty has no images'),
        ('predict run other', 'other has no images, only .json 1'),
        (
            'predict run images --out results',
            'is results: must end in .csv or .js',
        ),
        (
            'predict run images --out r.xlsx',
            'is r.xlsx: must end in .csv or .json',
        ),
        (
            'predict run images --out notes.txt/r.csv',
            'cannot write notes.txt/r.csv',
        ),
        (
            'predict run images --out r.csv --json',
            '--out writes a file: leave out ',
        ),
        ('predict run images --jsn', '--jsn (did you mean --json?)'),
        (
            'predict run images --top x',
            "--top is 'x': must be a whole number, at ",
        ),
        ('predict images run', 'run has no images, only without suffix'),
        ('export run', 'the following arguments are required: --format'),
        (
            'convert w.safetensors out',
            'is not a PyTorch checkpoint, or it is trunc',
        ),
        (
            'push run a/b/c',
            'a/b/c does not name a repository: must be OWNER/NAME',
        ),
        ('analyze', 'the following arguments are required: RUN_OR_WEIGHTS'),
        ('prepare', 'the following arguments are required: DATASET'),
        (
            'prepare foldr images',
            "unknown data set 'foldr' (did you mean folder?)",
        ),
        (
            'prepare folder twice',
            'twice has both val/ and valid/, which mean val',
        ),
        ('prepare segmentation s', 'prepare segmentation needs --images DIR'),
        (
            'prepare segmentation S --images own --labels own',
            "'S' cannot be the na",
        ),
        (
            'prepare cifar10 --archive no',
            'cannot read the archive no (No such file',
        ),
        ('prepare imagenet --images no', '--images no: no such directory'),
        ('evalute run', "no command 'evalute' (did you mean evaluate?)"),
    ],
)
def test_a_wrong_call_is_one_line(call, said, capsys):
  assert main.main(shlex.split(call)) == 2
  error = capsys.readouterr().err
  assert error.startswith('gswinrmt: ') and error.count('\n') == 1
  assert said in error
  assert len(error) < 420 and '[Errno' not in error and '.part' not in error


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_read_only_folder(tmp_path, capsys):
  (tmp_path / 'fixed').mkdir(mode=0o500)
  assert main.main(f'evaluate run --out {tmp_path}/fixed/x'.split()) == 2
  assert f'cannot write {tmp_path}/fixed/x: Perm' in capsys.readouterr().err


@pytest.mark.parametrize('image', ['x.png', 'cut.png', 'notes.txt', 'empty'])
def test_what_is_not_an_image_is_skipped(image):
  """It is named in one line, and the call does not fail."""
  loaded = gswinrmt_jax.load_model('digits_small')
  lines = []
  assert loaded.predict([image], skip=lines.append) == []
  said = {
      'x.png': 'x.png does not exist',
      'cut.png': 'cut.png is damaged: ',
      'notes.txt': 'notes.txt is not an image that can be read (BMP, ',
      'empty': 'empty is a folder: name image files in it',
  }
  assert len(lines) == 1 and lines[0].startswith(said[image])


_PIXELS = np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        (lambda g: g.load_model('digts_small'), 'did you mean digits_small'),
        (
            lambda g: g.load_model('digits_small', step=3),
            'is not a run: it has',
        ),
        (
            lambda g: g.load_model('digits_small', image_size=4),
            'at least 32x32 pixels, not 4x4',
        ),
        *(
            (
                lambda g, size=size: g.load_model(
                    'digits_small', image_size=size
                ),
                'must be height and width, or one number for both, whole and ',
            )
            for size in (0, -5, (32,), (32, 0), 32.5, [32, 32, 3])
        ),
        *(
            (
                lambda g, top=top: g.load_model('digits_small').predict(
                    _PIXELS, top
                ),
                f'top is {top}: must be a whole number above 0',
            )
            for top in (0, -1, 2.5)
        ),
        (
            lambda g: g.load_model('digits_small').pixels(_PIXELS / 255),
            r'float64 \(8, 8, 3\): must be pixels from 0 to 255, uint8',
        ),
        (
            lambda g: g.load_model('digits_small').preprocess(_PIXELS[..., 0]),
            r'uint8 \(8, 8\): must be pixels',
        ),
        (
            lambda g: g.create_model('rmt_compct', num_classes=2),
            r"'rmt_compct' \(did you mean rmt_compact\?\)",
        ),
        (
            lambda g: g.create_model('rmt_t', num_classes=2, pretrained=True),
            r'at random: load_model\(SOURCE\) loads',
        ),
        (
            lambda g: g.load_model('rmt_t'),
            'rmt_t is a model without trained weights here: create_model',
        ),
        (
            lambda g: g.load_model('gs://a/b'),
            'gs://a/b is an address: name a run folder',
        ),
        (
            lambda g: g.load_model('digits_small').predict('~/none.png'),
            f'^{os.path.expanduser("~")}/none.png does not exist',
        ),
        (
            lambda g: g.load_model('digits_small').logits(_PIXELS[..., 0]),
            r'uint8 \(8, 8\): must be pixels',
        ),
        (
            lambda g: g.create_model('rmt_t', num_classes=2, dephts=(1,)),
            r"no field 'dephts' \(did you mean depths\?\)",
        ),
        (
            lambda g: g.create_model('rmt_t', num_classes=2, dtype='float16'),
            "dtype='float16' is not one of",
        ),
        (
            lambda g: g.create_model('rmt_t', num_classes=2, score_fn='softmx'),
            "score_fn='softmx' is not one of",
        ),
    ],
)
def test_a_wrong_call_in_python(call, said):
  with pytest.raises(Exception, match=said) as caught:
    call(gswinrmt_jax)
  assert '\n' not in str(caught.value)
  assert isinstance(caught.value, (ValueError, UserError))


@pytest.mark.parametrize(
    ('platform', 'call'),
    [
        ('cuda', 'evaluate digits_small'),
        ('cuda', 'summarize rmt_t'),
        ('no_such_platform', f'predict digits_small {_DIGIT}'),
    ],
)
def test_a_platform_that_is_not_here(platform, call):
  """In a process of its own: JAX opens its platforms once."""
  if platform == 'cuda' and importlib.util.find_spec('jax_plugins'):
    pytest.skip('CUDA may be here')
  done = subprocess.run(
      [sys.executable, '-m', 'gswinrmt_jax', *call.split()],
      env={**os.environ, 'JAX_PLATFORMS': platform},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2
  assert done.stderr.count('\n') == 1
  assert f"JAX_PLATFORMS is '{platform}', which JAX cannot use" in done.stderr
