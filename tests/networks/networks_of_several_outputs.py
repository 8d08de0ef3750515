"""Networks that return several tensors, as people write them, with their losses and data."""

import torch
from torch import nn
from torch.nn import functional

ROWS, QUERIES = 16, 4
SAMPLES = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(ROWS) % 3
LABELS = torch.randint(3, (ROWS, QUERIES), generator=torch.Generator().manual_seed(1))
BOXES = torch.rand(ROWS, QUERIES, 4, generator=torch.Generator().manual_seed(2))


class AtTheEnd(nn.Module):
    """An auxiliary head on the same features, in training alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.aux = nn.Linear(8, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        h = self.a(x).tanh()
        y = self.b(h)
        return (y, self.aux(h)) if self.training else y


class Detector(nn.Module):
    """As DETR: a dictionary in both modes, with a list of the layers' outputs in it."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
        self.of_sets = OfTwoLayers()

    def forward(self, x):
        return self.of_sets(self.a(x))

    def nodes(self):
        return {"a": self.a, "of_sets": self.of_sets}


class OfTwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(6, 6)
        self.labels, self.boxes = nn.Linear(6, QUERIES * 3), nn.Linear(6, QUERIES * 4)

    def forward(self, h):
        return {**self.read(self.b(h).tanh()), "aux_outputs": [self.read(h)]}

    def read(self, h):
        n = len(h)
        return {"logits": self.labels(h).view(n, QUERIES, 3), "boxes": self.boxes(h).view(n, QUERIES, 4).sigmoid()}


class _Loss:
    def metrics(self, output, target):
        return {}


class WithAuxiliary(_Loss):
    def __call__(self, output, target):
        if not isinstance(output, tuple):
            return functional.cross_entropy(output, target)
        first, second = output
        return functional.cross_entropy(first, target) + 0.3 * functional.cross_entropy(second, target)

    def metrics(self, output, target):
        return {} if isinstance(output, tuple) else {"top1": (output.argmax(1) == target).sum()}


class OfSets(_Loss):
    def __call__(self, output, target):
        return self.of(output, target) + sum(self.of(one, target) for one in output["aux_outputs"])

    def of(self, output, target):
        labels = functional.cross_entropy(output["logits"].transpose(1, 2), target["labels"])
        return labels + functional.l1_loss(output["boxes"], target["boxes"])

    def metrics(self, output, target):
        return {"right": (output["logits"].argmax(2) == target["labels"]).float().mean(1).sum()}


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(self.a(x).tanh())


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return SAMPLES[index], int(CLASSES[index])


class Sets(Rows):
    def __getitem__(self, index):
        return SAMPLES[index], {"labels": LABELS[index], "boxes": BOXES[index]}


TARGETS = {Rows: CLASSES, Sets: {"labels": LABELS, "boxes": BOXES}}
KEPT = ((AtTheEnd, WithAuxiliary, Rows), (Detector, OfSets, Sets))
