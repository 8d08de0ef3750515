"""Networks with habits that people have: frozen parts, hooks, caches, random depth, counters, layers with several names."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune, weight_norm
from torch.utils.checkpoint import checkpoint


class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.c(self.b(self.a(x).tanh()).tanh())


class Own(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)


class FrozenPart(Three):
    def __init__(self):
        super().__init__()
        self.b.requires_grad_(requires_grad=False)


class FrozenNormalisation(Three):
    """The usual way: statistics of before, and parameters that are not trained, whatever the mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        self.norm.requires_grad_(requires_grad=False)
        return self

    def forward(self, x):
        return self.c(self.norm(self.b(self.a(x))).tanh())


class NoGradientBelow(Three):
    def forward(self, x):
        with torch.no_grad():
            x = self.b(self.a(x).tanh())
        return self.c(x)


class NoGradientOfTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.rnn, self.c = nn.Linear(8, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        x = self.a(x)
        with torch.no_grad():
            kept, _ = self.rnn(x[:, None])
        return self.c(x + kept[:, 0])


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_, x, levels):
        y = x * levels
        return y.round() / levels

    @staticmethod
    def backward(_, gradient):
        return gradient * 0.5, None


class StraightThrough(Three):
    def forward(self, x):
        return self.c(Rounded.apply(self.b(Rounded.apply(self.a(x), 4)), 8))


class HookKeeps(Three):
    """A hook writes to the network that it was made with."""

    def __init__(self):
        super().__init__()
        self.kept = {}
        self.a.register_forward_hook(lambda _, _inputs, output: self.kept.update(a=output))

    def forward(self, x):
        return self.c(self.b(self.a(x).tanh()) + self.kept["a"])


class HookChanges(Three):
    def __init__(self):
        super().__init__()
        self.b.register_forward_hook(lambda _, _inputs, output: output * 2)
        self.b.register_full_backward_hook(lambda _, gradients, _outputs: (gradients[0] * 0.5,))
        self.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))


class FunctionInAttribute(Three):
    """It reads a parameter of the network that it was made with."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((16,), 0.5))
        self.act = lambda x: (x * self.scale).tanh()

    def forward(self, x):
        return self.c(self.b(self.act(self.a(x))))


class Cached(Three):
    def __init__(self):
        super().__init__()
        self.positions, self.features = {}, []

    def forward(self, x):
        if 16 not in self.positions:
            self.positions[16] = torch.arange(16, device=x.device) / 16
        self.features = [self.a(x) + self.positions[16]]
        self.features.append(self.b(self.features[-1]).tanh())
        return self.c(sum(self.features))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.track_running_stats = True
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        steps = self.steps + self.training
        if self.training and self.track_running_stats:
            self.steps.copy_(steps)
        return x / (1 + steps)


class CountingModule(Three):
    def __init__(self):
        super().__init__()
        self.counting = Counting()

    def forward(self, x):
        return self.c(self.counting(self.b(self.a(x))))


class Mixed(Own):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = super().forward(x)
        return x.float()


class MixedModule(Three):
    def __init__(self):
        super().__init__()
        self.b = Mixed()


class NoAutocast(Three):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x)


class Checkpointed(Three):
    def forward(self, x):
        return self.c(checkpoint(lambda x: self.b(self.a(x).tanh()), x, use_reentrant=False))


class TwoNames(Three):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.a, self.b])
        self.last = self.layers[-1]
        del self.a, self.b

    def forward(self, x):
        return self.c(self.last(self.layers[0](x).tanh()))


class Tied(Three):
    def forward(self, x):
        x = self.b(self.a(x)).tanh()
        return self.c(x + functional.linear(x, self.b.weight.t()))


class Repeated(Three):
    def forward(self, x):
        x = self.a(x)
        for _ in range(3):
            x = self.b(x).tanh()
        return self.c(x)


class OldWeightNorm(Three):
    def __init__(self):
        super().__init__()
        self.b = weight_norm(self.b)


class Orthogonal(Three):
    def __init__(self):
        super().__init__()
        self.b = parametrizations.orthogonal(self.b)


class Pruned(Three):
    def __init__(self):
        super().__init__()
        prune.l1_unstructured(self.b, "weight", 0.5)


class SpectralNorm(Three):
    def __init__(self):
        super().__init__()
        self.b, self.c = parametrizations.spectral_norm(self.b), parametrizations.spectral_norm(self.c)


class OddBuffers(Three):
    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.arange(16).flip(0))
        self.register_buffer("mask", torch.arange(16) > 3)
        self.register_buffer("nothing", None)
        self.register_buffer("scale", torch.full((16,), 0.5, dtype=torch.float16))
        self.register_buffer("turns", torch.view_as_real(torch.polar(torch.ones(8), torch.arange(8.0))))

    def forward(self, x):
        x = self.a(x)[:, self.order].masked_fill(~self.mask, 0) * self.scale
        turned = torch.view_as_complex(x.view(-1, 8, 2)) * torch.view_as_complex(self.turns)
        return self.c(self.b(torch.view_as_real(turned).flatten(1)))


class Codes(Three):
    """Integers and masks of values, read on the other side of a layer."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(16, 16)

    def forward(self, x):
        x = self.a(x)
        nearest, positive = x.argmax(1), x > 0
        return self.c((self.b(x) + self.codes(nearest)).masked_fill(positive, 0))


class Fourier(Three):
    def forward(self, x):
        return self.c(torch.fft.irfft(torch.fft.rfft(self.b(self.a(x))) * 0.5, n=16))


class GradientMask(Three):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", (torch.arange(16) < 8).float()[:, None])

    def forward(self, x):
        weight = self.b.weight * self.mask + (self.b.weight * (1 - self.mask)).detach()
        return self.c(functional.linear(self.a(x), weight, self.b.bias))


class DroppedLayer(Three):
    """A layer that is dropped as the hint says, with the rate 0 here: random numbers are others than plain PyTorch's."""

    def forward(self, x):
        x = self.a(x)
        return self.c(x + functional.dropout(x.new_ones(1), 0.0, self.training) * self.b(x).tanh())


class InPlace(Three):
    def forward(self, x):
        x = self.a(x)
        x[:, 0] = 0
        x[:, 1].add_(1)
        x.view(-1, 16).mul_(0.5)
        return self.c(self.b(x) + x)


class Viewed(nn.Module):
    """Behind a convolution, whose output a node has as channels-last."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, (1, 2)), nn.Linear(24, 3)

    def forward(self, x):
        x = self.b(self.a(x.view(-1, 1, 2, 4)).relu()).relu()
        return self.c(x.view(x.size(0), -1))


KEPT = [
    FrozenPart,
    FrozenNormalisation,
    NoGradientBelow,
    NoGradientOfTuple,
    StraightThrough,
    HookKeeps,
    HookChanges,
    FunctionInAttribute,
    Cached,
    CountingModule,
    MixedModule,
    NoAutocast,
    Checkpointed,
    TwoNames,
    Tied,
    Repeated,
    OldWeightNorm,
    Orthogonal,
    Pruned,
    SpectralNorm,
    OddBuffers,
    Codes,
    Fourier,
    GradientMask,
    DroppedLayer,
    InPlace,
    Viewed,
]


class SpectralNormDelayed(SpectralNorm):
    """Trained with a method that runs each forward twice."""


class LimitedNorm(Codes):
    """Beside a mask of float32."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(16, 16, max_norm=1.0)

    def forward(self, x):
        x = self.a(x)
        nearest, positive = x.argmax(1), (x > 0).float()
        return self.c((self.b(x) + self.codes(nearest)) * positive)


class ViewedWithin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 1), nn.Sequential(Viewing())

    def forward(self, x):
        return self.b(self.a(x.view(-1, 1, 2, 4)))


class Viewing(nn.Module):
    def __init__(self):
        super().__init__()
        self.b, self.c = nn.Conv2d(4, 4, (1, 2)), nn.Linear(24, 3)

    def forward(self, x):
        return self.c(self.b(x).view(x.size(0), -1))


BROKEN = [
    (SpectralNormDelayed, "b.parametrizations.weight.0._v changed in a forward", 'method.name = "backprop"'),
    (LimitedNorm, "changed the values of codes.weight", "nn.Embedding(max_norm=...)"),
    (ViewedWithin, "view size is not compatible", 'precision.memory_format = "contiguous"'),
]
"""Refused by the self-check, with the reason and the remedy."""


class PythonDraws(Three):
    def forward(self, x):
        x = self.a(x)
        if not self.training or random.random() > 0.001:
            x = x + self.b(x)
        return self.c(x)


class NumpyDraws(Three):
    def forward(self, x):
        return super().forward(x * np.random.uniform(0.5, 1.5))  # noqa: NPY002  as people write it


class OwnGenerator(Three):
    def __init__(self):
        super().__init__()
        self.random = random.Random(0)

    def forward(self, x):
        return super().forward(x if self.random.random() > 0.001 else x * 2)


class Seeds(Three):
    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x * torch.rand(8))


class DrawnToChoose(Three):
    def forward(self, x):
        return super().forward(x * 2 if torch.empty(1).uniform_() < 0.5 else x)


class Counts(Three):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return super().forward(x) if self.steps < 1000 else x


class CountsInBuffer(Three):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps = self.steps + 1
        return super().forward(x)


class BeginsOnce(Three):
    def __init__(self):
        super().__init__()
        self.begun = False

    def forward(self, x):
        x = x if self.begun else x * 2
        self.begun = True
        return super().forward(x)


class Remembers(Three):
    def __init__(self):
        super().__init__()
        self.before = None

    def forward(self, x):
        x = self.a(x)
        x, self.before = x if self.before is None else x + self.before.mean(0), x.detach()
        return self.c(self.b(x))


class MixedRegion(Three):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.b(self.a(x))
        return self.c(x.float())


class Masked(Own):
    mask = None

    def forward(self, x):
        return super().forward(x) if self.mask is None else super().forward(x) * self.mask


class SetsOfAnother(Three):
    def __init__(self):
        super().__init__()
        self.b = Masked()

    def forward(self, x):
        self.b.mask = 0.5
        return super().forward(x)


class ReadsOfAnother(Three):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.b.register_forward_hook(lambda _, _inputs, output: output * self.scale)


class OtherWeights(Three):
    def forward(self, x):
        doubled = {"weight": self.b.weight * 2, "bias": self.b.bias}
        return self.c(torch.func.functional_call(self.b, doubled, (self.a(x),)))


class InPlaceWithoutGradient(Three):
    def forward(self, x):
        x = self.a(x)
        with torch.no_grad():
            x.clamp_(-1, 1)
        return self.c(self.b(x))


class SetsData(Three):
    def forward(self, x):
        self.b.weight.data = functional.normalize(self.b.weight.data)
        return super().forward(x)


class HooksOfTensors(Three):
    def forward(self, x):
        x = self.a(x)
        x.register_hook(lambda gradient: gradient * 0.1)
        return self.c(self.b(x))


class HooksOfParameters(Three):
    def __init__(self):
        super().__init__()
        self.b.weight.register_hook(lambda gradient: gradient * 0)


class HooksOfAll(Three):
    def __init__(self):
        super().__init__()
        self.register_full_backward_hook(lambda _, gradients, _outputs: gradients)


class MergedInEvaluation(Three):
    def train(self, mode=True):
        with torch.no_grad():
            self.b.weight.mul_(2 if mode else 0.5)
        return super().train(mode)


class StatisticsTwice(Three):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.c(self.norm(self.b(self.norm(self.a(x)))))


class Lazy(Three):
    def __init__(self):
        super().__init__()
        self.b = nn.LazyLinear(16)


class Vectorised(Three):
    def forward(self, x):
        return self.c(torch.vmap(torch.tanh)(self.b(self.a(x))))


REFUSED = [
    (PythonDraws, "x = x + self.b(x)", "draws random numbers from Python's `random`", "F.dropout"),
    (NumpyDraws, "np.random.uniform", "draws random numbers from numpy's global generator", "F.dropout"),
    (OwnGenerator, "", "changes random at each call", "draw with torch"),
    (Seeds, "torch.rand(8)", "seeds torch's generator", "seed nothing"),
    (DrawnToChoose, "uniform_", "depends on the values of a tensor, by bool", "module of its own"),
    (Counts, "", "changes steps at each call", "track_running_stats"),
    (CountsInBuffer, "", "replaces the buffer steps", "track_running_stats"),
    (BeginsOnce, "return self.c(self.b", "does something else when it is called again", "module of its own"),
    (Remembers, "self.before.mean(0)", "reads a tensor that it has kept from the call before", "samples alone"),
    (MixedRegion, "self.b(self.a(x))", "switches torch.autocast", 'precision.compute = "bfloat16"'),
    (SetsOfAnother, "", "sets mask of b, which the node of b does not see", "as an argument"),
    (ReadsOfAnother, "output * self.scale", "a module reads scale, which it neither holds nor is given", "argument"),
    (OtherWeights, "functional_call", "reads a tensor of the network's forward, which it neither holds", "argument"),
    (InPlaceWithoutGradient, "x.clamp_", "changes in place, without gradients", "(y - x).detach()"),
    (SetsData, "weight.data = ", "sets data of a tensor", "module of its own"),
    (HooksOfTensors, "x.register_hook", "calls register_hook", "module of its own"),
    (HooksOfParameters, "", "parameters have hooks for their gradients, which a copy has not: b.weight", "w * mask"),
    (HooksOfAll, "", "the network has backward hooks", "autograd.Function"),
    (MergedInEvaluation, "", "its train(False) writes to b.weight", "module of its own"),
    (StatisticsTwice, "", "norm is called in several nodes, and writes to buffers", "one module for each call"),
    (Lazy, "", "have no shape before the first forward: b.weight, b.bias", "Linear(in_features, out_features)"),
    (Vectorised, "torch.vmap", "neither a parameter, nor a buffer, nor made from its input", "torch.func"),
]
"""With the line, the reason and the remedy; those that are trained above follow it."""
