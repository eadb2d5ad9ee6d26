"""The pictures: what is in which panel, and files whole or not at all."""

from matplotlib.backends import backend_agg
import numpy as np
from PIL import Image
import pytest

from gswinrmt_jax import maps
from gswinrmt_jax.maps import drawing, grid, reach

SIZE = (40, 60)
HEADS = (1, 2, 8, 16)
NAMES = ('attention_reach', 'decay_kernels', 'gate', 'grad_cam')
PICTURE = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


def _maps(*, gate=True, decay=True, cam=1.0):
  """Maps of a model that never was; stage 4 attends over all pairs."""
  rng = np.random.default_rng(1)
  stages = []
  for stage, heads in enumerate(HEADS, start=1):
    stride = 2 ** (stage + 1)
    extents = grid.extents(SIZE, stride)
    rates = rng.uniform(0.5, 1, (1 if stage == 4 else 2, heads))
    token = grid.token((33, 21), stride)
    weights = rng.uniform(size=(heads, *extents))
    weights[:, :, 0] = 0
    kernel = reach.decay_kernel(rates, (extents[0] - 1, extents[1] - 1))
    stages.append(
        maps.StageMaps(
            stride=stride,
            block=stage,
            token=token,
            weights=weights,
            distance=10 * stage + np.arange(float(heads)),
            rates=rates if decay else None,
            kernel=kernel if decay else None,
            gate=rng.uniform(0.3, 0.6, extents) if gate else None,
        )
    )
  return maps.Maps(
      size=SIZE,
      point=(33, 21),
      logits=np.zeros(7),
      label=5,
      stages=tuple(stages),
      cam_stage=2,
      cam=cam * rng.uniform(size=SIZE),
  )


def _titles(figure):
  return [axes.get_title() for axes in figure.axes]


def test_four_whole_pictures_in_a_new_directory(tmp_path):
  directory = tmp_path / 'new' / 'maps'
  paths = maps.write(directory, _maps(), PICTURE, title='a title ' * 20)
  assert paths == [directory / f'{name}.png' for name in NAMES]
  assert sorted(directory.iterdir()) == sorted(paths)
  for path in paths:
    drawn = np.asarray(Image.open(path).convert('RGB'))
    assert 200 < drawn.shape[0] < 1500 and 400 < drawn.shape[1] < 2000
    assert drawn.std() > 20
    # Nothing runs off the picture.
    border = np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]])
    assert (border == 255).all()


def test_a_failure_leaves_the_old_picture(tmp_path, monkeypatch):
  path = tmp_path / 'gate.png'
  drawing._save(path, drawing._words('first'), 'a title')
  before = path.read_bytes()

  def print_png(self, where):
    where.write_bytes(b'half')
    raise OSError('disk full')

  monkeypatch.setattr(backend_agg.FigureCanvasAgg, 'print_png', print_png)
  with pytest.raises(OSError, match='disk full'):
    drawing._save(path, drawing._words('second'), 'a title')
  assert path.read_bytes() == before


def test_reach_has_a_row_a_stage_and_at_most_eight_heads():
  """Of 16 heads every second or so; each token framed on its own pixels."""
  figure = drawing._reach(_maps(), PICTURE)
  *panels, colorbar = figure.axes
  assert len(panels) == 1 + 2 + 8 + 8
  shown = [title.partition(':')[0] for title in _titles(figure)[11:19]]
  assert shown == [f'head {n}' for n in (0, 2, 4, 6, 9, 11, 13, 15)]
  assert _titles(figure)[1:3] == ['head 0: 20.00', 'head 1: 21.00']
  assert panels[1].get_ylabel() == 'stage 2\nblock 2'
  (frame,) = panels[1].patches
  assert frame.get_bbox().bounds == (31.5, 15.5, 8, 8)
  (cut,) = panels[-1].patches
  assert cut.get_bbox().bounds == (31.5, -0.5, 28, 32)
  assert colorbar.get_ylim() == (0, 1)


def test_tokens_lie_over_their_pixels_and_the_last_are_cut():
  """Stage 3: 3 x 4 tokens of 16 pixels, on 40 x 60 pixels."""
  figure = drawing._reach(_maps(), PICTURE)
  panel = figure.axes[3]
  picture, weights = panel.images
  assert picture.get_array().shape == SIZE
  assert weights.get_extent() == [-0.5, 63.5, 47.5, -0.5]
  assert panel.get_xlim() == (-0.5, 59.5) and panel.get_ylim() == (39.5, -0.5)
  of_head = _maps().stages[2].weights[0]
  np.testing.assert_allclose(
      weights.get_array().filled(0), of_head / of_head.max()
  )
  assert weights.get_array().mask[:, 0].all()  # no weight, no colour


def test_kernels_stand_around_zero_and_name_their_rates():
  figure = drawing._decay(_maps())
  panel = figure.axes[3]
  assert panel.images[0].get_extent() == [-3.5, 3.5, 2.5, -2.5]
  assert panel.images[0].get_clim() == (0, 1)
  rates = _maps().stages[2].rates[:, 0]
  assert panel.get_title() == f'head 0: {rates[0]:.3f} {rates[1]:.3f}'
  assert len(_titles(figure)[11].split()) == 3  # one rate over all pairs


def test_gates_share_a_scale_around_one_half():
  figure = drawing._gate(_maps(), PICTURE)
  gates = [of_stage.gate for of_stage in _maps().stages]
  spread = max(np.abs(gate - 0.5).max() for gate in gates)
  for axes, gate in zip(figure.axes[1:5], gates, strict=True):
    np.testing.assert_allclose(
        axes.images[1].get_clim(), (0.5 - spread, 0.5 + spread)
    )
    assert axes.get_title().endswith(f'mean {gate.mean():.3f}')


def test_what_a_model_lacks_is_said():
  figure = drawing._gate(_maps(gate=False), PICTURE)
  assert [text.get_text() for text in figure.texts] == [
      'This model has no gate.'
  ]
  figure = drawing._decay(_maps(decay=False))
  assert [text.get_text() for text in figure.texts] == [
      'This model has no decay by distance.'
  ]


def test_grad_cam_is_drawn_over_its_largest_value():
  panel = drawing._grad_cam(_maps(cam=1e-5), PICTURE).axes[1]
  assert panel.images[1].get_array().max() == pytest.approx(1)
  assert panel.get_title() == 'class 5, stage 2'
  panel = drawing._grad_cam(_maps(cam=0.0), PICTURE).axes[1]
  assert panel.get_title() == 'class 5, stage 2: no evidence'


@pytest.mark.parametrize(
    'picture', [PICTURE.astype(np.float32), PICTURE[:, :-1], PICTURE[..., 0]]
)
def test_another_picture_is_refused(tmp_path, picture):
  with pytest.raises(ValueError, match=r'not uint8 \(40, 60, 3\)'):
    maps.write(tmp_path / 'maps', _maps(), picture)
  assert not (tmp_path / 'maps').exists()
