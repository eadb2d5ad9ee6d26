"""Class names and statistics of CIFAR-10."""

# Alphabetical, which is also the order of the labels.
CLASSES = (
    'airplane',
    'automobile',
    'bird',
    'cat',
    'deer',
    'dog',
    'frog',
    'horse',
    'ship',
    'truck',
)
# Commonly quoted statistics of the original train split's pixels / 255.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
# The last 5,000 of the 50,000 training images are for validation.
SPLITS = {'train': 'train[:45000]', 'val': 'train[45000:]', 'test': 'test'}
