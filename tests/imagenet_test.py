from gswinrmt_jax.data import imagenet


def test_classes_are_in_the_order_of_the_labels():
  names = imagenet.classes()
  assert len(names) == len(set(names)) == imagenet.NUM_CLASSES
  # As in every published list of the labels.
  assert names[0] == 'tench'
  assert names[207] == 'golden retriever'
  assert names[281] == 'tabby'
  assert names[817] == 'sports car'
  assert names[999] == 'toilet tissue'
  assert names[134] == 'crane (n02012849)'


def test_identifiers_are_sorted():
  wnids = imagenet.wnids()
  assert list(wnids) == sorted(set(wnids)) and len(wnids) == 1000
  assert wnids[0] == 'n01440764' and wnids[999] == 'n15075141'
