"""Gathers what a run measured into one JSON, for this folder.

  python results/collect.py RUN > results/NAME.json

Recipe, surroundings (device, versions, commit), figures of every epoch, and the
closing summary if the run has ended.
"""

import json
import pathlib
import sys


def collect(run: pathlib.Path) -> dict:
  """Returns the run's recipe, surroundings, epochs and summary."""

  def read(name):
    path = run / name
    return json.loads(path.read_text()) if path.exists() else None

  lines = (run / 'metrics.jsonl').read_text().splitlines()
  entries = [json.loads(line) for line in lines]
  return {
      'config': read('config.json'),
      'environment': read('environment.json'),
      'epochs': [entry for entry in entries if entry['kind'] == 'epoch'],
      'summary': read('summary.json'),
  }


if __name__ == '__main__':
  print(json.dumps(collect(pathlib.Path(sys.argv[1])), indent=1))
