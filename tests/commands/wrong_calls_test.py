"""Tests that wrong calls give status 2 and one line that says what to do."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import gswinrmt_jax
from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import export, loaded_model
from gswinrmt_jax.errors import UserError

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
  (folder / 'notes.txt').write_text('x')
  (folder / 'cut.png').write_bytes(pathlib.Path(_DIGIT).read_bytes()[:60])
  (folder / 'w.safetensors').write_bytes(b'abc' * 10)
  (folder / 'w.pth').write_bytes(b'PK\x03\x04garbage')
  return folder


@pytest.fixture(autouse=True)
def _inside(place, monkeypatch):
  """Enters the folder; errors must be found before a model runs."""

  def computed(*args, **how):
    raise AssertionError('a model ran')

  monkeypatch.chdir(place)
  monkeypatch.setenv('TFDS_DATA_DIR', str(place / 'tfds'))
  monkeypatch.setattr(loaded_model.LoadedModel, '_apply', computed)
  monkeypatch.setattr(export, 'model_logits', computed)


_RECIPE = 'train --config=digits_rmt --workdir=new'


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
        ('evaluate s3://a/b', 's3://a/b is an address: name a file or folder'),
        ('evaluate ~/none', f'{os.path.expanduser("~")}/none does not exist'),
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
    ],
)
def test_a_wrong_call_is_one_line(call, said, capsys):
  assert main.main(call.split()) == 2
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


@pytest.mark.parametrize('platform', ['cuda', 'no_such_platform'])
def test_a_platform_that_is_not_here(platform):
  """In a process of its own: JAX opens its platforms once."""
  if platform == 'cuda' and importlib.util.find_spec('jax_plugins'):
    pytest.skip('CUDA may be here')
  done = subprocess.run(
      [sys.executable, '-m', 'gswinrmt_jax', 'evaluate', 'digits_small'],
      env={**os.environ, 'JAX_PLATFORMS': platform},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2
  assert done.stderr.count('\n') == 1
  assert f"JAX_PLATFORMS is '{platform}', which JAX cannot use" in done.stderr
