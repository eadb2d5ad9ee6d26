"""What is found in pictures of every kind, by one process or by several."""

import concurrent.futures
from concurrent.futures import process
import io
import os

import image_files
import PIL.Image
import PIL.ImageOps
import processes
import pytest

from gswinrmt_jax.data import inspect_images, pictures
from gswinrmt_jax.data.collection import Picture
from gswinrmt_jax.errors import UserError


@pytest.mark.parametrize(
    'kind, mode',
    [
        ('JPEG', 'RGB'),
        ('JPEG', 'L'),
        ('JPEG', 'CMYK'),
        ('PNG', 'P'),
        ('PNG', 'RGBA'),
        ('PNG', '1'),
        ('GIF', 'P'),
        ('BMP', 'RGB'),
        ('WEBP', 'RGB'),
        ('TIFF', 'F'),
        ('PPM', 'L'),
    ],
)
def test_pictures_that_can_be_used(kind, mode):
  content = image_files.encoded(1, kind, mode)
  found = inspect_images.inspect(content)
  assert found == inspect_images.Finding(
      '', inspect_images.digest(content), len(content), 7, 5, mode, kind
  )


def test_exif_is_seen(monkeypatch):
  exif = PIL.Image.Exif()
  exif[0x0112] = 6
  found = inspect_images.inspect(image_files.encoded(1, exif=exif.tobytes()))
  assert found.turned and not found.problem
  assert (found.width, found.height) == (7, 5)  # As stored.
  with monkeypatch.context() as patch:
    patch.setattr(PIL.ImageOps, 'exif_transpose', lambda *_, **how: 1 / 0)
    found = inspect_images.inspect(image_files.encoded(1, exif=exif.tobytes()))
  assert found.problem == 'is damaged: division by zero'
  # EXIF that cannot be read does no harm.
  found = inspect_images.inspect(image_files.encoded(1, exif=b'Exif\0\0none'))
  assert not found.turned and not found.problem
  exif[0x0112] = 1
  found = inspect_images.inspect(image_files.encoded(1, exif=exif.tobytes()))
  assert not found.turned


def test_pictures_that_cannot(monkeypatch):
  def problem(content):
    found = inspect_images.inspect(content)
    assert found == inspect_images.Finding(found.problem)
    assert '\n' not in found.problem
    return found.problem

  assert problem(b'') == 'is empty'
  assert problem(b'no picture') == (
      'is no picture that can be read (BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP)'
  )
  # Pillow would run Ghostscript on it.
  assert 'is no picture' in problem(image_files.encoded(1, 'EPS'))
  whole = image_files.encoded(1)
  assert 'truncated' in problem(whole[:-40])
  assert 'truncated' in problem(image_files.encoded(1, 'PNG')[:-30])
  monkeypatch.setattr(PIL.Image, 'MAX_IMAGE_PIXELS', 34)  # 35 are few too many
  assert problem(whole) == 'has more than 34 pixels'
  monkeypatch.setattr(PIL.Image, 'MAX_IMAGE_PIXELS', 17)  # 35 are an error
  assert problem(whole) == 'has more than 17 pixels'


def test_what_training_does_not_read_is_not_accepted(monkeypatch):
  # Refused where it becomes RGB: its numbers are of an unknown range.
  deep = PIL.Image.new('F', (5, 4), 3.0)
  file = io.BytesIO()
  deep.save(file, 'TIFF')
  with pytest.raises(UserError, match=r'^x is damaged: pixels of 3'):
    pictures.decode(file.getvalue(), 'x')
  found = inspect_images.inspect(file.getvalue())
  assert found.problem == 'is damaged: pixels of 3 to 3, not of 0 to 1'
  monkeypatch.setattr(pictures, '_to_rgb', lambda picture: 1 / 0)
  found = inspect_images.inspect(image_files.encoded(1))
  assert found.problem == 'is damaged: division by zero'


def test_digest_is_of_every_byte():
  content = image_files.encoded(1)
  assert inspect_images.digest(content) < 2**64
  assert (
      len(
          {
              inspect_images.digest(c)
              for c in (content, content + b'\0', content[1:])
          }
      )
      == 3
  )


def _run(root, names, jobs=1):
  pictures = [Picture(name, 0) for name in names]
  return list(
      inspect_images.inspect_all(
          root, pictures, jobs=jobs, journal=root / 'journal'
      )
  )


def test_several_processes_find_the_same_in_order(tmp_path):
  names = image_files.names('a', 'b', count=60)  # More than a few chunks.
  contents = image_files.write(tmp_path, names)
  (tmp_path / names[70]).write_bytes(b'x')
  names.insert(50, 'a/none.jpg')
  found = _run(tmp_path, names, jobs=2)
  (tmp_path / 'journal').unlink()
  assert found == _run(tmp_path, names, jobs=1)
  for name, (finding, is_new) in zip(names, found, strict=True):
    assert is_new
    if name == 'a/none.jpg':
      assert finding.problem == 'No such file or directory'
    elif name == names[71]:
      assert 'is no picture' in finding.problem
    else:
      assert finding.digest == inspect_images.digest(contents[name])


def test_journal_saves_the_second_look(tmp_path, capsys):
  names = image_files.names('a', count=5)
  image_files.write(tmp_path, names)
  before = _run(tmp_path, ['gone.jpg', *names])
  (tmp_path / names[1]).write_bytes(image_files.encoded(9))
  os.utime(tmp_path / names[2], ns=(0, 0))
  image_files.write(tmp_path, ['gone.jpg'])
  again = _run(tmp_path, ['gone.jpg', *names])
  assert (
      '5 pictures were looked at by an earlier run' in capsys.readouterr().out
  )
  # Also the one that could not be read, and the two that have changed.
  assert [new for _, new in again] == [True, False, True, True, False, False]
  assert again[1][0] == before[1][0] and again[3][0] == before[3][0]
  assert again[2][0].digest == inspect_images.digest(image_files.encoded(9))
  assert not any(new for _, new in _run(tmp_path, names))


def test_journal_of_another_pillow_is_not_believed(tmp_path, monkeypatch):
  names = image_files.names('a', count=3)
  image_files.write(tmp_path, names)
  _run(tmp_path, names)
  # Killed while it wrote a line; what follows is of another version.
  with (tmp_path / 'journal').open('a') as file:
    file.write('["a/4.jpg", [0')
  (tmp_path / names[1]).write_bytes(image_files.encoded(9))
  with monkeypatch.context() as patch:
    patch.setattr(PIL, '__version__', 'another')
    assert [new for _, new in _run(tmp_path, names)] == [True] * 3
    assert [new for _, new in _run(tmp_path, names)] == [False] * 3
  again = [new for _, new in _run(tmp_path, names)]
  assert again == [False, True, False]


def test_a_process_that_dies_is_one_line(tmp_path):
  class Pool:

    def submit(self, *_):
      future = concurrent.futures.Future()
      future.set_exception(process.BrokenProcessPool('terminated abruptly'))
      return future

  with pytest.raises(UserError, match='try a smaller --jobs'):
    list(inspect_images._map(Pool(), tmp_path, [[]], ahead=2))


def test_few_chunks_are_under_way():
  begun, done = [], []

  class Pool:

    def submit(self, _, root, chunk):
      begun.append(chunk)
      future = concurrent.futures.Future()
      future.set_result(chunk)
      return future

  for chunk, finding in inspect_images._map(Pool(), '/x', range(9), ahead=3):
    assert chunk == finding
    done.append(chunk)
    assert len(begun) - len(done) <= 3
  assert done == list(range(9))


def test_workers_end_with_a_killed_parent():
  code = (
      'import os, signal\n'
      'from gswinrmt_jax.data import inspect_images\n'
      'with inspect_images._executor(2) as pool:\n'
      '  print(pool.submit(os.getpid).result(), flush=True)\n'
      '  os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  child = processes.child_of_killed(code)
  processes.wait_for_end(child)


@pytest.mark.parametrize('end', [b'\xc3', b'17\n', b'["a/1.jpg"]\n', b'{}\n'])
def test_a_journal_that_was_cut_or_mixed_up(end, tmp_path):
  names = [*image_files.names('a'), 'a/\u00e9.jpg']
  image_files.write(tmp_path, names)
  before = _run(tmp_path, names)
  with (tmp_path / 'journal').open('ab') as file:
    file.write(end)  # of a character of two bytes, the first
  again = _run(tmp_path, names)
  assert again == [(finding, False) for finding, _ in before]
  content = (tmp_path / 'journal').read_bytes()
  cut = content.rindex('\u00e9'.encode()) + 1
  (tmp_path / 'journal').write_bytes(content[:cut])
  assert [new for _, new in _run(tmp_path, names)] == [False] * 3 + [True]
  assert not any(new for _, new in _run(tmp_path, names))
