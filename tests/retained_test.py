"""Which checkpoints go, by hand."""

import pytest

from gswinrmt_jax.checkpoints import retained


@pytest.mark.parametrize(
    ('accuracies', 'gone'),
    [
        ({}, []),
        ({1: 0.5}, []),
        ({1: 0.1, 2: 0.9, 3: 0.3, 4: 0.2, 5: 0.4}, [1, 3]),
        ({1: 0.5, 2: 0.5, 3: 0.2, 4: 0.2}, [1]),  # the later is the best
        ({1: 0.0, 2: 0.0, 3: 0.0}, [1]),
        # From amid an epoch: two, and only while they are the newest.
        ({1: None, 2: None, 3: None}, [1]),
        ({1: 0.5, 2: 0.1, 3: 0.1, 4: None, 5: None, 6: None}, [4]),
        ({1: 0.5, 2: None, 3: 0.1, 4: None}, [2]),
        ({1: 0.5, 2: 0.1, 3: 0.1, 4: None, 5: 0.2}, [2, 4]),
    ],
)
def test_the_best_and_the_two_latest_of_each_kind_are_kept(accuracies, gone):
  assert retained.superseded(accuracies) == gone
