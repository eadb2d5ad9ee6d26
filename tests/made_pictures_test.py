"""Pictures that are made up are a data set like any other."""

import numpy as np

from gswinrmt_jax.benchmark import made_pictures
from gswinrmt_jax.data import datasets


def test_they_are_a_data_set_of_so_many_classes(tmp_path):
  mean = made_pictures.prepare(tmp_path, 7, classes=3, width=50, height=40)
  assert [path.name for path in tmp_path.iterdir()] == [made_pictures.NAME]
  info = datasets.info(made_pictures.NAME, str(tmp_path))
  assert len(info.class_names) == 3
  found = datasets.load(made_pictures.NAME, 'train', str(tmp_path))
  assert found.image.shape == (7, 40, 50, 3)
  assert sorted(found.label) == [0, 0, 0, 1, 1, 2, 2]
  # Noise, each picture its own, and more than a few bytes.
  assert found.image.std((1, 2, 3)).min() > 30 and mean > 2000
  assert len(np.unique(found.image.reshape(7, -1), axis=0)) == 7
