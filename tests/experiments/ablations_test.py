"""Tests that each ablation switch builds, and changes one component."""

import ablations
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory, named
from gswinrmt_jax.ops.attention import effective_window

ALL = [
    (base, switch)
    for base, table in ablations.SWITCHES.items()
    for switch in table
]


def _model(base, switch, size='compact'):
  """Returns the model fields of a run's config."""
  config = recipe_files.load(
      f'ablation:{base},{switch}{"" if size == "compact" else ",mini"}', []
  )
  return recipes.resolve(config).model.to_dict()


def test_every_switch_makes_a_model():
  for base, switch in ALL:
    name = f'{ablations.BASES[base].family}_compact'
    changed = ablations.changed_fields(base, switch)
    factory.create_model(name, num_classes=3, **changed)


def test_a_switch_is_one_component_away_from_what_it_is_compared_with():
  for base, switch in ALL:
    one = ablations.SWITCHES[base][switch]
    assert one.against in ablations.SWITCHES[base]
    changed, before = (
        ablations.changed_fields(base, name) for name in (switch, one.against)
    )
    origin = named.MODELS[f'{ablations.BASES[base].family}_compact']
    differing = {
        field
        for field in changed | before
        if changed.get(field, getattr(origin, field))
        != before.get(field, getattr(origin, field))
    }
    assert len(differing) == (switch != 'base'), (base, switch)


@pytest.mark.parametrize('size', ['compact', 'large'])
def test_a_run_is_recognized_by_its_config(size):
  for base, switch in [('bare', 'base'), ('rmt', 'sigmoid'), ('swat', 'gate')]:
    name = ablations.join(base, switch)
    assert ablations.label(_model(base, switch, size)) == name
  model = _model('retention', 'no_gate')
  assert ablations.label(model) == 'retention,no_gate'
  assert ablations.label(model | {'gate': True}) == 'retention'
  other = model | {'swiglu': True, 'depths': (1, 1, 1, 1)}
  assert ablations.label(other) == 'retention,gate=False,swiglu=True'
  four = model | {'gate': True, 'layer_scale': (0.5,) * 4}
  assert ablations.label(four) == 'retention,layer_scale=0.5'
  assert ablations.sizes(other) == {'depths': (1, 1, 1, 1)}


def test_a_token_label_model_has_the_size_of_its_base():
  names = 'rmt_s', 'rmt_s_tl', 'rmt_b_tl', 'swat_compact'
  assert [*map(ablations.size_of, names)] == ['s', 's', 'b', 'compact']


def test_no_two_switches_make_the_same_model():
  made = {
      (
          ablations.BASES[base].family,
          *sorted(ablations.changed_fields(base, switch).items()),
      )
      for base, switch in ALL
  }
  assert len(made) == len(ALL)


def test_idle_switches_change_no_window_at_32_pixels():
  for base, switch in ALL:
    fields = ablations.changed_fields(base, switch)
    if not {'window_size', 'shift'} & fields.keys():
      assert not ablations.SWITCHES[base][switch].idle
      continue
    size = fields.get('window_size', 14)
    shift = size // 2 if fields.get('shift', True) else 0
    real = effective_window(8, size, shift) != (8, 0)
    assert real != bool(ablations.SWITCHES[base][switch].idle), (base, switch)


@pytest.mark.parametrize(
    ('argument', 'said'),
    [
        ('swatt,gate', "no base 'swatt'; there are bare, rmt, retention, swat"),
        (
            'rmt,no_gate',
            "rmt has no switch 'no_gate'; there are base, decomposed",
        ),
        ('rmt', "rmt has no switch ''; there are base, decomposed"),
        ('rmt,gate,big', "misplaced argument 'big'"),
    ],
)
def test_mistakes_are_one_line(argument, said):
  with pytest.raises(UserError, match=said) as caught:
    recipe_files.load(f'ablation:{argument}', [])
  assert '\n' not in str(caught.value)


def test_smoke_keeps_the_switch():
  config = recipe_files.load('ablation:retention,no_gate,mini,smoke', [])
  assert config.data.name == 'digits' and config.num_epochs == 1
  assert config.model.name == 'retention_large' and not config.model.gate
