import image_files
import pytest

from gswinrmt_jax.data import own_folder
from gswinrmt_jax.errors import UserError


@pytest.mark.parametrize('name', ['birds', 'my_set_2', 'b'])
def test_names_that_will_do(name):
  own_folder.check_name(name)


@pytest.mark.parametrize(
    'name, said',
    [
        (None, 'a NAME is needed'),
        ('', 'a NAME is needed'),
        ('Birds', 'small letters'),
        ('2birds', 'small letters'),
        ('my-birds', 'small letters'),
        ('../birds', 'small letters'),
        ('vögel', 'small letters'),
        ('birds\n', 'small letters'),
        ('cifar10', 'is taken'),
        ('digits', 'is taken'),
        ('imagenet', 'is taken'),
    ],
)
def test_names_that_will_not(name, said):
  with pytest.raises(UserError, match=said):
    own_folder.check_name(name)


def test_class_folders_are_divided(tmp_path):
  image_files.write(tmp_path, image_files.names('a', 'b', count=20))
  made = own_folder.find(tmp_path)
  assert made.counts('train') == [16, 16]
  assert made.counts('val') == made.counts('test') == [2, 2]
  assert made.source['seed'] == 0
  made = own_folder.find(tmp_path, val=0.25, test=0, seed=3)
  assert made.counts('train') == [15, 15] and made.counts('val') == [5, 5]
  assert made.source['seed'] == 3 and 'test' not in made.splits


@pytest.mark.parametrize('option', ['val', 'test', 'seed'])
def test_splits_of_ones_own_stay(option, tmp_path):
  image_files.write(tmp_path, image_files.names('train/a', 'val/a'))
  made = own_folder.find(tmp_path)
  assert list(made.splits) == ['train', 'val']
  with pytest.raises(UserError, match=f'own train/, so --{option} has no use'):
    own_folder.find(tmp_path, **{option: 0})
