import pytest

from gswinrmt_jax.data import collection
from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.errors import UserError


def _made(names=('a', 'b'), train=(0, 1), **splits):
  parts = {'train': train, **splits}
  return Collection(
      '/x',
      names,
      {
          split: [
              Picture(f'{split}/{i}', label) for i, label in enumerate(part)
          ]
          for split, part in parts.items()
      },
  )


def test_counts_are_by_class():
  made = _made(('a', 'b', 'c'), (2, 0, 2, 2), val=(1,))
  assert made.counts('train') == [1, 0, 3]
  assert made.counts('val') == [0, 1, 0]


def test_pictures_in_files_and_in_tars(tmp_path):
  (tmp_path / 'a.jpg').write_bytes(b'abc')
  (tmp_path / 'b.tar').write_bytes(b'0123456789')
  file = Picture('a.jpg', 0)
  member = Picture('b.tar/c.jpg', 0, 'b.tar', 3, 4)
  assert collection.read(tmp_path, file) == b'abc'
  assert collection.read(tmp_path, member) == b'3456'
  time = (tmp_path / 'a.jpg').stat().st_mtime_ns
  assert collection.stamp(tmp_path, file) == (3, time)
  time = (tmp_path / 'b.tar').stat().st_mtime_ns
  assert collection.stamp(tmp_path, member) == (4, time)


@pytest.mark.parametrize(
    'arguments, said',
    [
        ({'names': ('a',), 'train': (0,)}, "one class only, 'a'"),
        ({'names': (' a', 'b')}, "' a' has blanks"),
        ({'names': ('a', 'b\nc')}, 'line break'),
        ({'names': ('a', 'b\u2028c')}, 'line break'),
        ({'train': (0, 0)}, "class 'b' has no picture to train with"),
        ({'val': ()}, 'no picture is left for val'),
    ],
)
def test_what_cannot_be_a_data_set(arguments, said):
  with pytest.raises(UserError, match=said):
    collection.check(_made(**arguments))


def test_what_can():
  collection.check(_made(('à la carte', '猫'), (1, 0), val=(1,)))
