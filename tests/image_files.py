"""Small image files of every kind, and the command that prepares them."""

import argparse
import functools
import io
import pathlib
import tarfile

import numpy as np
import PIL.Image

from gswinrmt_jax.commands import prepare as command


@functools.cache
def encoded(seed: int, kind: str = 'JPEG', mode: str = 'RGB', **options):
  """Returns the bytes of a noise image, 7 pixels wide and 5 high."""
  noise = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
  file = io.BytesIO()
  picture = PIL.Image.fromarray(noise).convert(mode)
  if mode == 'F':
    picture = picture.point(lambda value: value * (1 / 255) + 0)
  picture.save(file, kind, **options)
  return file.getvalue()


def write(root: pathlib.Path, names, first: int = 0) -> dict[str, bytes]:
  """Writes a JPEG under each name; returns the bytes by name."""
  contents = {name: encoded(first + i) for i, name in enumerate(names)}
  for name, content in contents.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
  return contents


def names(*folders: str, count: int = 3) -> list[str]:
  return [f'{folder}/{i}.jpg' for folder in folders for i in range(count)]


def tar(contents: dict[str, bytes]) -> bytes:
  """Returns an uncompressed tar."""
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode='w') as archive:
    for name, content in contents.items():
      member = tarfile.TarInfo(name)
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  return file.getvalue()


def prepare(*arguments: str) -> None:
  """Runs `gswinrmt prepare`; its errors are raised."""
  parser = argparse.ArgumentParser(prog='gswinrmt prepare')
  command.add_arguments(parser)
  command.run(parser.parse_args(arguments))
