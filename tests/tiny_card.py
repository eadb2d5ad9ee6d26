"""The card of a narrow SWAT model, for tests of weights and their files."""

from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card

_FIELDS = {
    'widths': (8, 8, 16, 16),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 1),
}
CARD = card.Card(
    name='swat_compact',
    fields=factory.resolve('swat_compact', _FIELDS),
    num_classes=3,
    class_names=('cat', 'dog', 'eel'),
    image_size=(32, 48),
    mean=(0.1, 0.2, 0.3),
    std=(0.4, 0.5, 0.6),
    crop=0.875,
    dtype='bfloat16',
    figures={'seed': 3},
)
