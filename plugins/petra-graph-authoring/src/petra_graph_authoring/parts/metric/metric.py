import torch


class WorstClass:
    """Counts the samples and the right answers of each class, for outputs [n, classes] and class indices [n]."""

    def __init__(self, options):
        self.least = options.least
        self.samples = self.right = 0

    def update(self, output, target):
        classes = output.shape[1]
        right = target[output.argmax(1) == target]
        self.samples = self.samples + torch.bincount(target, minlength=classes)
        self.right = self.right + torch.bincount(right, minlength=classes)

    def compute(self):
        shares = self.right / self.samples
        counted = shares[self.samples >= self.least]
        return counted.min() if len(counted) else float("nan")
