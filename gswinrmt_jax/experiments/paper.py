"""What the Gated-SwinRMT paper (arXiv 2604.06014) prints, by its tables."""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Printed:
  """Of one model on one data set.

  Attributes:
    parameters: As printed.
    extra: Parameters over RMT's, as printed.
    seconds: Of an epoch, on an H100; None: not printed.
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
  """What is printed of one data set.

  Attributes:
    title: Of the data set.
    results: Number of the table of results.
    curves: Number of the table of validation accuracies by epoch.
    epochs: Of a run.
    models: By base, as `switches.BASES` has them.
    changes: Tables 7 and 8: from, to, difference in test accuracy in points.
  """

  title: str
  results: int
  curves: int
  epochs: int
  models: Mapping[str, Printed]
  changes: tuple[tuple[str, str, float], ...]


def _curve(epochs, *accuracies):
  return dict(zip(epochs, accuracies, strict=True))


_EPOCHS_4 = range(5, 41, 5)
_EPOCHS_6 = range(10, 51, 10)

MINI_IMAGENET = Benchmark(
    title='Mini-ImageNet',
    results=3,
    curves=4,
    epochs=40,
    models={
        'rmt': Printed(
            parameters='77.4 M',
            extra='',
            seconds=240,
            val=75.21,
            test=73.74,
            test_loss=1.6526,
            curve=_curve(
                _EPOCHS_4, 31.1, 45.4, 55.8, 61.3, 68.3, 72.2, 74.6, 75.2
            ),
        ),
        'retention': Printed(
            parameters='78.1 M',
            extra='+0.93 %',
            seconds=288,
            val=79.39,
            test=78.20,
            test_loss=1.5093,
            curve=_curve(
                _EPOCHS_4, 35.4, 53.8, 65.0, 70.1, 74.8, 77.0, 78.6, 79.4
            ),
        ),
        'swat': Printed(
            parameters='78.6 M',
            extra='+1.64 %',
            seconds=297,
            val=81.10,
            test=80.22,
            test_loss=1.4573,
            curve=_curve(
                _EPOCHS_4, 41.2, 60.3, 67.7, 74.5, 77.6, 79.0, 79.9, 81.1
            ),
        ),
    },
    changes=(
        ('rmt', 'retention', 4.46),
        ('retention', 'swat', 2.02),
        ('rmt', 'swat', 6.48),
    ),
)
CIFAR10 = Benchmark(
    title='CIFAR-10',
    results=5,
    curves=6,
    epochs=50,
    models={
        'rmt': Printed(
            parameters='11.5 M',
            extra='',
            seconds=None,
            val=85.98,
            test=85.90,
            test_loss=0.8132,
            curve=_curve(_EPOCHS_6, 70.58, 80.44, 84.18, 85.52, 85.98),
        ),
        'retention': Printed(
            parameters='15.3 M',
            extra='+33.9 %',
            seconds=None,
            val=86.54,
            test=86.46,
            test_loss=0.8112,
            curve=_curve(_EPOCHS_6, 70.52, 80.58, 84.54, 86.24, 86.54),
        ),
        'swat': Printed(
            parameters='15.3 M',
            extra='+33.9 %',
            seconds=None,
            val=86.76,
            test=86.39,
            test_loss=0.8109,
            curve=_curve(_EPOCHS_6, 72.34, 80.32, 83.96, 86.16, 86.76),
        ),
    },
    changes=(
        ('rmt', 'retention', 0.56),
        ('retention', 'swat', -0.07),
        ('rmt', 'swat', 0.49),
    ),
)
# What Tables 7 and 8 say is in each of `changes`.
COMPONENTS = {
    ('rmt', 'retention'): 'position convolution, LCE, G1 gate',
    ('retention', 'swat'): 'SwiGLU on V, sigmoid',
    ('rmt', 'swat'): 'all components',
}
