"""Records whether files are synced to disk before they are renamed."""

import os
import pathlib


def watch(monkeypatch) -> list[str]:
  """Returns a list that receives each synced name, and 'RENAMED' per rename."""
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
