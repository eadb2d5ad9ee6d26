"""The results in the tables of the Gated-SwinRMT paper (arXiv 2604.06014)."""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True)
class Printed:
  """The results of one model on one data set.

  Attributes:
    parameters: Number of parameters, as printed.
    extra: Parameters in excess of RMT's, as printed.
    seconds: Seconds per epoch on an H100; None if not printed.
    val: Validation accuracy at the end, %.
    test: Test accuracy, %.
    test_loss: Test loss.
    curve: Validation accuracy by epoch, %.
  """

  parameters: str
  extra: str
  seconds: float | None
  val: float
  test: float
  test_loss: float
  curve: Mapping[int, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
  """The results on one data set.

  Attributes:
    title: Title of the data set.
    results: Number of the table of results.
    curves: Number of the table of validation accuracies by epoch.
    models: Results by base, a key of `BASES` in `configs/ablation.py`.
  """

  title: str
  results: int
  curves: int
  models: Mapping[str, Printed]


def _table4(*accuracies):
  return dict(zip(range(5, 41, 5), accuracies, strict=True))


def _table6(*accuracies):
  return dict(zip(range(10, 51, 10), accuracies, strict=True))


# fmt: off
MINI_IMAGENET = Benchmark(
    title='Mini-ImageNet',
    results=3,
    curves=4,
    models={
        'rmt': Printed(
            '77.4 M', '', 240, 75.21, 73.74, 1.6526,
            _table4(31.1, 45.4, 55.8, 61.3, 68.3, 72.2, 74.6, 75.2),
        ),
        'retention': Printed(
            '78.1 M', '+0.93 %', 288, 79.39, 78.20, 1.5093,
            _table4(35.4, 53.8, 65.0, 70.1, 74.8, 77.0, 78.6, 79.4),
        ),
        'swat': Printed(
            '78.6 M', '+1.64 %', 297, 81.10, 80.22, 1.4573,
            _table4(41.2, 60.3, 67.7, 74.5, 77.6, 79.0, 79.9, 81.1),
        ),
    },
)
CIFAR10 = Benchmark(
    title='CIFAR-10',
    results=5,
    curves=6,
    models={
        'rmt': Printed(
            '11.5 M', '', None, 85.98, 85.90, 0.8132,
            _table6(70.58, 80.44, 84.18, 85.52, 85.98),
        ),
        'retention': Printed(
            '15.3 M', '+33.9 %', None, 86.54, 86.46, 0.8112,
            _table6(70.52, 80.58, 84.54, 86.24, 86.54),
        ),
        'swat': Printed(
            '15.3 M', '+33.9 %', None, 86.76, 86.39, 0.8109,
            _table6(72.34, 80.32, 83.96, 86.16, 86.76),
        ),
    },
)
# fmt: on
# Tables 7 and 8: pair of models -> components that the tables name as changed.
# The printed change is the difference of the two test accuracies.
CHANGES = {
    ('rmt', 'retention'): 'position convolution, LCE, G1 gate',
    ('retention', 'swat'): 'SwiGLU on V, sigmoid',
    ('rmt', 'swat'): 'all components',
}
