"""Uploads the weights of a run to the Hugging Face Hub.

  gswinrmt push runs/cifar10_retention OWNER/NAME --license apache-2.0

Uploads model.safetensors, config.json and a model card with the measured
results. Creates the repository if it does not exist. `hf auth login` stores the
access token. Weights that do not come from a run, such as converted RMT
weights, are refused.
"""

import argparse

from gswinrmt_jax.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add(
      'weights',
      type=arguments.weights,
      metavar='RUN',
      help='run folder runs/NAME, or one of its checkpoints',
  )
  arguments.add_checkpoint(parser)
  add('repository', metavar='OWNER/NAME', help='repository to upload to')
  add('--revision', default='', metavar='TAG', help='tag this version')
  add('--private', action='store_true', help='create a private repository')
  arguments.add_about(parser)


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  weights = arguments.load_weights(args)

  from gswinrmt_jax.deploy import push

  push.push(
      weights,
      args.repository,
      license=args.license,
      note=args.note,
      tag=args.revision,
      private=args.private,
  )
