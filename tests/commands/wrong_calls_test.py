"""Tests that wrong calls give status 2 and one line that says what to do."""

import functools
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
  for name in ('own/ant', 'own/bee'):
    (folder / name).mkdir(parents=True)
    for number in range(8):
      shutil.copy(_DIGIT, folder / name / f'{number}.png')
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
  monkeypatch.setattr(export, 'model_outputs', computed)


_DIGITS = 'train --config=digits_rmt --workdir=new'
_FOLDER = 'train --config=folder --workdir=new --config.data.name='
_SAFETENSORS = 'export run --format safetensors --out'
_SEGMENTATION = 'prepare segmentation new --images own --labels own'
_HOME = os.path.expanduser('~')
_WRONG_CALLS = [
    # gswinrmt
    ('evalute', "gswinrmt: no command 'evalute' (did you mean evaluate?)"),
    ('xyz', "gswinrmt: no command 'xyz'; there are prepare, train, "),
    # prepare
    ('prepare', 'the following arguments are required: DATASET'),
    ('prepare folder images', 'has 1 class folder: two or'),
    ('prepare cifar10 --archive no', 'cannot read the archive no (No such'),
    ('prepare cifar10 --archive=~/none.tar.gz', f'archive {_HOME}/none.tar.gz'),
    ('prepare segmentation S --images own --labels own', "'S' cannot be"),
    (f'{_SEGMENTATION} --labels gs://a/b', 'gs://a/b is an address: name a f'),
    (f'{_SEGMENTATION} --dir gs://a/b', 'gs://a/b is an address: name a file'),
    (f'{_SEGMENTATION} --classes x', 'x cannot be read: No such file or dire'),
    (f'{_SEGMENTATION} --classes {_DIGIT}', '4.png cannot be read: it is not'),
    # train
    ('train --config=', '--config needs a value'),
    ('train --workdir=x', '--config is missing'),
    ('train --confg=a', "gswinrmt: unknown argument '--confg=a'"),
    ('train config=digits_rmt', 'did you mean --config?'),
    ('train digits_rmt:smoke', 'did you mean --config=digits_rmt:smoke?'),
    ('train --config=nothing', 'no recipe nothing'),
    ('train --config=notes.txt', 'must be a Python file, NAME.py, or one'),
    (f'{_DIGITS} extra', "unknown argument 'extra'"),
    (f'{_DIGITS} --workdri=a', 'did you mean --workdir?'),
    (f'{_DIGITS} --epochs=3', '(did you mean --config.num_epochs?)'),
    (f'{_DIGITS} --seed=1', 'did you mean --config.seed?'),
    (f'{_DIGITS} --learning_rate 1', 'mean --config.optimizer.learning_rate?'),
    (f'{_DIGITS} --process=1', '--coordinator= --processes= --process=1: must'),
    (f'{_DIGITS} --coordinator=a:1', '--processes= --process=: must be HOST'),
    ('train --config=digits_rmt --workdir=gs://a/b', 'gs://a/b is an addr'),
    ('train --config=digits_rmt --workdir=hf-hub:a/b', 'is a repository of'),
    ('train --config=digits_rmt --workdir=run', 'more; choose another --w'),
    ('train --config=digits_rmt --workdir=notes.txt', 'Not a directory; c'),
    ('train --config=imagenet_rmt:s', 'run `gswinrmt prepare imagenet --'),
    ('train --config=bccd --config.data.name=.', '`gswinrmt prepare detect'),
    # train on a folder of images
    ('train --config=folder', '--config.data.name is missing: name a folder'),
    ('train --config=folder --data=x', 'did you mean --config.data.name?'),
    (f'{_FOLDER}nowhere', "unknown data set 'nowhere'; built in: digits, di"),
    (f'{_FOLDER}no/where', 'no/where does not exist; give a fol'),
    (f'{_FOLDER}own/ant/0.png', 'ant/0.png is no folder; giv'),
    (f'{_FOLDER}~no_one/x --config.data.dir=~no_one', '~no_one/x does n'),
    (f'{_FOLDER}x --config.data.dir=gs://a/b', 'gs://a/b is an address'),
    (f'{_FOLDER}own --config.data.val_split=dev', "own has no split 'dev', or"),
    (
        f'{_FOLDER}own --config.data.train_split=train[:0%]',
        "own has no split 'train[:0%]', or it is emp",
    ),
    (f'{_FOLDER}own --config.init_from=nowhere', 'nowhere does not exist: na'),
    (f'{_FOLDER}own --config.init_from=~no_one/x', '~no_one/x does not'),
    (f'{_FOLDER}own --config.init_from=gs://a/b', 'gs://a/b is an address'),
    (f'{_FOLDER}own --config.init_from=w.pth', 'w.pth is not a PyT'),
    (f'{_FOLDER}own --config.init_from=other', 'of a run: it names no mo'),
    (f'{_FOLDER}own --config.optimizer.freeze=backbone', 'without config.init'),
    (
        f'{_FOLDER}own --config.init_from=cifar10_small'
        ' --config.optimizer.freeze=stage4 --config.model.depths=(1,1,1)',
        "freeze is 'stage4': the model has stage1 to stage3",
    ),
    # evaluate
    ('evaluate', 'the following arguments are required: RUN_OR_WEIGHTS'),
    ('evaluate x --stp=1', 'arguments: --stp=1 (did you mean --step?)'),
    (
        'evaluate x --step=bst',
        "gswinrmt: --step is 'bst': must be best, latest or a step number (d",
    ),
    ('evaluate x --image-size=big', "--image-size is 'big': must be a whole"),
    ('evaluate x --image-size=0', "is '0': must be a whole number, at least 1"),
    ('evaluate x --batch-size=-3', "--batch-size is '-3': must be a whole nu"),
    ('evaluate x --weights=mean', "argument --weights: invalid choice: 'mean'"),
    ("evaluate ''", 'a path is empty: is a shell variable not set'),
    ('evaluate s3://a/b', 's3://a/b is an address: name a file or folder'),
    ('evaluate ~/none', f'{_HOME}/none does not exist'),
    ('evaluate ~no_one/run', '~no_one/run does not exist: name a run fol'),
    ('evaluate empty', 'empty is neither a run folder, such as runs/NAME,'),
    ('evaluate run/checkpoints', 'no config.json (did you mean run?)'),
    ('evaluate .', 'no config.json (did you mean '),
    ('evaluate cut', 'cut/config.json cannot be read: Expecting value'),
    ('evaluate none', 'none has no checkpoints yet'),
    ('evaluate other', 'other/config.json is not the recipe of a run'),
    ('evaluate notes.txt', 'notes.txt does not hold weights: name a run'),
    ('evaluate w.safetensors', 'w.safetensors is damaged: '),
    ('evaluate w.pth', 'w.pth is not a PyTorch checkpoint, or it is trunc'),
    (
        'evaluate run --data cifar10',
        "class 0 is '0' in run, step 243 (epoch 12), and 'a",
    ),
    ('evaluate run --data own', 'has 10 classes, own has 2: choose a data set'),
    ('evaluate run --split', '--split: expected one argument (gswinrmt evalua'),
    ('evaluate run --split tset', "digits has no split 'tset': it has tr"),
    ('evaluate run --step 7', 'no checkpoint 7 in '),
    ('evaluate run --weights ema', 'run has no average of its weights: it was'),
    ('evaluate digits_small --step 3', 'digits_small is not a run: it has no'),
    ('evaluate run --out empty', 'cannot write empty: it is a folder'),
    ('evaluate run --out notes.txt/x', 'cannot write notes.txt/x: '),
    # predict
    ('predict run', 'no image is named: gswinrmt predict RUN_OR_WEI'),
    ('predict one.png', 'one.png is an image: the run or weights come'),
    (f'predict {_DIGIT} run', 'is an image: the run or weights come first'),
    ('predict hf-hub:foo x.png', 'not name a repository: must be hf-hub:O'),
    ("predict run ''", 'a path is empty: is a shell variable not set'),
    ("predict run x.png --out ''", 'a path is empty: is a shell variable'),
    ('predict run empty', 'empty has no images'),
    ('predict run other', 'other has no images, only .json 1'),
    ('predict images run', 'run has no images, only without suffix'),
    ('predict run x.png --maps notes.txt', 'txt/image.png: a file is'),
    ('predict run x.png --point 3', "--point is '3': must be X,Y such as"),
    ('predict run images --out results', 'is results: must end in .csv'),
    ('predict run images --out r.xlsx', 'is r.xlsx: must end in .csv'),
    ('predict run images --out notes.txt/r.csv', 'cannot write notes.txt/r.'),
    ('predict run images --out r.csv --json', '--out writes a file: leave out'),
    ('predict run images --jsn', '--jsn (did you mean --json?)'),
    ('predict digits_small x.png --weights ema', 'it has no averages to'),
    ('predict digits_small x.png --point 3,4', '--point needs --maps'),
    ('predict digits_small x.png --image-size=8', 'at least 32x32 pixels, not'),
    ('predict digits_small x.png --image-size=9999', 'is at most 4,096 pixels'),
    # convert, export and push
    ('convert run out', 'run cannot be read: Is a directory'),
    ('convert ~no_one/rmt.pth out', '~no_one/rmt.pth does not exist'),
    ('convert w.safetensors out', 'is not a PyTorch checkpoint, or it is tru'),
    ('export run', 'the following arguments are required: --format'),
    ('export run --format onx', "--format: invalid choice: 'onx' (choose from"),
    ('export run --format torch', 'Choose another --format.'),
    (f'{_SAFETENSORS} hf-hub:a/b', 'machine (`gswinrmt push` uploads a run)'),
    (f'{_SAFETENSORS} other', 'other/config.json was not written by an export'),
    (f'{_SAFETENSORS} notes.txt', 'cannot write notes.txt/model.safetensors: '),
    ('push run digits', 'digits does not name a repository: must be OWNER'),
    ('push run a/b/c', 'a/b/c does not name a repository: must be OWNER/NAME'),
    ('push digits_small me/x', 'digits_small is not a run: push uploads'),
    # analyze and summarize
    ('analyze', 'the following arguments are required: RUN_OR_WEIGHTS'),
    ('analyze run empty', 'empty is neither a run folder'),
    ('summarize', 'name a model, or --all'),
    ("summarize 'swin_*'", "no model 'swin_*'"),
    ('summarize rmt_tt', "no model 'rmt_tt' (did you mean rmt_t?)"),
    ('summarize rmt_t --image-size=8', 'rmt_t: Images must be at least 32x32'),
]
# Values of fields of `digits_rmt`.
_WRONG_FIELDS = [
    ('model.num_classes=5', 'the classes are those of config.data.name'),
    ('optimizer.lr=1', 'did you mean --config.optimizer.learning_rate?)'),
    ('wd=1', 'did you mean --config.optimizer.weight_'),
    ('dtype=bf16', '(did you mean bfloat16?)'),
    ('augment.rand_augment_set=timn', "or 'torchvision' (did you mean timm?)"),
    ('data.name=cifar11', 'did you mean cifar10?'),
    ('data.name=images', 'has 1 class folder: two or more are needed'),
    ('data.name=digit_masks', 'is a data set for segmentation: classificat'),
    ('data.train_split=trian', "no split 'trian': it"),
    ('data.test_split=none', "test_split: digits has no split 'none': it"),
    ('init_from=nowhere', 'nowhere does not exist: na'),
    ('init_from=rmt_t', 'rmt_t is a model without trained weights here'),
    ('init_from=w.pth', 'w.pth is not a PyTorch checkpoint, or it is'),
    ('optimizer.freeze=stem', 'without config.init_from: random values'),
    ('optimizer.power=2.0', '2.0 but has no effect: it needs config.optimi'),
    (
        'optimizer.decay_layer_scale=True --config.model.layer_scale=0,0,0,0',
        'it needs config.optimizer.weight_decay above 0 and model.layer_sc',
    ),
    (
        'init_from=digits_small --config.optimizer.freeze=backbone '
        '--config.model.drop_path_rate=0.5',
        'model.drop_path_rate is 0.5 but has no effect: it needs config.optim',
    ),
    (
        'optimizer.schedule=epochs --config.optimizer.warmup_epochs=1',
        'the first two epochs the rate config.optimizer.warmup_learning_rate',
    ),
    ('ema_warmup=True', 'has no effect: it needs config.ema_decay above 0'),
    ('accumulate_steps=7', 'must be a multiple of 14, two images for each of'),
]


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        *_WRONG_CALLS,
        *((f'{_DIGITS} --config.{word}', said) for word, said in _WRONG_FIELDS),
    ],
)
def test_a_wrong_call_is_one_line(call, said, capsys):
  assert main.main(shlex.split(call)) == 2
  printed, error = capsys.readouterr()
  assert error.startswith('gswinrmt: ') and error.count('\n') == 1
  assert said in error
  assert len(error) < 420 and '[Errno' not in error and '.part' not in error
  if call.startswith('train --config'):  # nothing has started
    assert not printed


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


def _load(source='digits_small', **how):
  return gswinrmt_jax.load_model(source, **how)


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        (lambda: _load(step=3), 'is not a run: it has'),
        (lambda: _load(image_size=4), 'at least 32x32 pixels, not 4x4'),
        *(
            (
                lambda size=size: _load(image_size=size),
                'must be height and width, or one number for both, whole and ',
            )
            for size in (0, -5, (32,), (32, 0), 32.5, [32, 32, 3])
        ),
        *(
            (
                lambda top=top: _load().predict(_PIXELS, top),
                f'top is {top}: must be a whole number above 0',
            )
            for top in (0, -1, 2.5)
        ),
        (
            lambda: gswinrmt_jax.create_model(
                'rmt_t', num_classes=2, pretrained=True
            ),
            r'at random: load_model\(SOURCE\) loads',
        ),
        (
            lambda: _load('rmt_t'),
            'rmt_t is a model without trained weights here: create_model',
        ),
        (
            lambda: _load('gs://a/b'),
            'gs://a/b is an address: name a run folder',
        ),
        (
            lambda: _load().predict('~/none.png'),
            f'^{_HOME}/none.png does not exist',
        ),
    ],
)
def test_a_wrong_call_in_python(call, said):
  with pytest.raises(Exception, match=said) as caught:
    call()
  assert '\n' not in str(caught.value)
  assert isinstance(caught.value, (ValueError, UserError))


def test_a_platform_that_is_not_here():
  """In a process of its own: JAX opens its platforms once."""
  platform = 'no_such_platform'
  done = subprocess.run(
      [sys.executable, '-m', 'gswinrmt_jax', 'predict', 'digits_small', _DIGIT],
      env={**os.environ, 'JAX_PLATFORMS': platform},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2
  assert done.stderr.count('\n') == 1
  assert f"JAX_PLATFORMS is '{platform}', which JAX cannot use" in done.stderr
