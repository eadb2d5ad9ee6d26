"""Watches that files are on the disk before they get their names."""

import os
import pathlib


def watch(monkeypatch) -> list[str]:
  """Returns a list of the names that are synced, and 'RENAMED', as it grows."""
  log, fsync, replace = [], os.fsync, os.replace

  def note(descriptor):
    path = pathlib.Path(os.readlink(f'/proc/self/fd/{descriptor}'))
    log.append(path.name)
    fsync(descriptor)

  def rename(source, target):
    log.append('RENAMED')
    replace(source, target)

  monkeypatch.setattr(os, 'fsync', note)
  monkeypatch.setattr(os, 'replace', rename)
  return log
