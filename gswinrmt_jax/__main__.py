"""`python -m gswinrmt_jax` is the console command `gswinrmt`."""

from gswinrmt_jax.commands import main

if __name__ == '__main__':
  main.console()
