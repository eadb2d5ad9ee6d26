import io
import tarfile

import mat_file_test
import pytest

from gswinrmt_jax.data import imagenet_labels
from gswinrmt_jax.errors import UserError

_WNIDS = ['n03000000', 'n01000000', 'n02000000', 'n09000000']
_EXPECTED = {
    'ILSVRC2012_val_00000001': 'n02000000',
    'ILSVRC2012_val_00000002': 'n03000000',
    'ILSVRC2012_val_00000003': 'n02000000',
}
_TRUTH = '3\n1\n3\n'  # From 1, in the order of _WNIDS.


def _meta():
  return mat_file_test.written(
      mat_file_test.synsets(_WNIDS), do_compression=True
  )


@pytest.mark.parametrize(
    'name, text',
    [
        (
            'val.txt',
            'ILSVRC2012_val_00000001.JPEG n02000000\n'
            'ILSVRC2012_val_00000002.JPEG n03000000\r\n'
            'ILSVRC2012_val_00000003.JPEG\tn02000000',
        ),
        (
            'LOC_val_solution.csv',  # As Kaggle has it, with boxes.
            'ImageId,PredictionString\n'
            'ILSVRC2012_val_00000002,n03000000 85 1 499 272 n03000000 1 2 3 4\n'
            'ILSVRC2012_val_00000001,n02000000 85 1 499 272 \n'
            'ILSVRC2012_val_00000003,n02000000 1 2 3 4 \n',
        ),
    ],
)
def test_lists(name, text, tmp_path):
  (tmp_path / 'a_readme.txt').write_text('nothing of use')
  (tmp_path / 'numbers.txt').write_text('ILSVRC2012_val_00000001.JPEG 65\n')
  (tmp_path / name).write_text(text)
  assert imagenet_labels.read(tmp_path) == (_EXPECTED, name)


@pytest.mark.parametrize('below', ['', 'data', 'ILSVRC2012_devkit_t12/data'])
def test_devkit_unpacked(below, tmp_path):
  folder = tmp_path / below
  folder.mkdir(parents=True, exist_ok=True)
  (folder / imagenet_labels.TRUTH).write_text(_TRUTH)
  (folder / 'meta.mat').write_bytes(_meta())
  labels, name = imagenet_labels.read(tmp_path)
  assert labels == _EXPECTED
  assert (tmp_path / name).exists()


def _devkit(path, **files):
  with tarfile.open(path, 'w:gz') as tar:
    for name, content in files.items():
      name = {'truth': imagenet_labels.TRUTH, 'meta': 'meta.mat'}[name]
      member = tarfile.TarInfo(f'ILSVRC2012_devkit_t12/data/{name}')
      member.size = len(content)
      tar.addfile(member, io.BytesIO(content))


def test_devkit_as_released(tmp_path):
  path = tmp_path / 'ILSVRC2012_devkit_t12.tar.gz'
  _devkit(path, truth=_TRUTH.encode(), meta=_meta())
  assert imagenet_labels.read(tmp_path) == (_EXPECTED, path.name)
  path.write_bytes(path.read_bytes()[:-200])
  with pytest.raises(UserError, match=r'devkit_t12.tar.gz is damaged'):
    imagenet_labels.read(tmp_path)


@pytest.mark.parametrize(
    'truth, meta',
    [(b'9\n', None), (b'x\n', None), (b'1\n', b'nothing'), (b'1\n', b'')],
)
def test_devkit_that_cannot_be_read(truth, meta, tmp_path):
  path = tmp_path / 'ILSVRC2012_devkit_t12.tar.gz'
  _devkit(path, truth=truth, meta=_meta() if meta is None else meta)
  with pytest.raises(UserError, match='cannot read the validation labels'):
    imagenet_labels.read(tmp_path)


def test_ground_truth_alone_is_refused(tmp_path):
  (tmp_path / imagenet_labels.TRUTH).write_text(_TRUTH)
  with pytest.raises(UserError, match=r'without meta\.mat') as caught:
    imagenet_labels.read(tmp_path)
  assert str(caught.value).endswith(imagenet_labels.FORMS)


def test_nothing_says_what_would_do(tmp_path):
  with pytest.raises(UserError) as caught:
    imagenet_labels.read(tmp_path)
  message = str(caught.value)
  assert 'ILSVRC2012_val_00000001.JPEG n01751748' in message
  assert 'val/ with a folder' in message and 'devkit' in message
