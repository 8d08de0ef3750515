import numpy as np
import torch


class Split:
    """Samples `first` to `first + length`; sample i is of class i % 2."""

    def __init__(self, first, length):
        self.first = first
        self.length = length

    def __len__(self):
        return self.length

    @property
    def plain(self):
        """The same samples without augmentation, for `data.validation`: these have none."""
        return self

    def fetch(self, indices, *, seed, epoch):
        images = torch.stack([self.image(self.first + int(index)) for index in indices])
        return images, self.fetch_targets(indices)

    def fetch_targets(self, indices):
        return torch.as_tensor([(self.first + int(index)) % 2 for index in indices])

    def image(self, number):
        noise = np.random.default_rng(number).integers(0, 64, (1, 8, 8))
        stripes = 128 * (np.arange(8) % 4 < 2)
        rows = stripes[:, None] if number % 2 else stripes[None, :]
        return torch.from_numpy((noise + rows).astype(np.uint8))


class NoisyStripes:
    """The opened data set."""

    def __init__(self, options):
        self.train = Split(0, options.samples)
        self.test = Split(options.samples, options.samples // 4)
        self.facts = options.facts()
