"""Networks with their parts declared, and networks that cannot be cut as they say: what each does is named by its class."""

import random

import torch
from torch import nn
from torch.nn import functional

CLASSES, SIDE, WIDTH, WORDS = 3, 8, 8, 11


def step(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU())


class Up(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = step(2 * channels, channels)

    def forward(self, x, skip):
        return self.conv(torch.cat([functional.interpolate(x, scale_factor=2), skip], 1))


class Last(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, CLASSES)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))


class UNet(nn.Module):
    """Skip edges over two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = step(1, 4), nn.Sequential(nn.MaxPool2d(2), step(4, 4))
        self.mid = nn.Sequential(nn.MaxPool2d(2), step(4, 4))
        self.up2, self.up1 = Up(4), Up(4)
        self.last = Last(4)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(first)
        return self.last(self.up1(self.up2(self.mid(second), second), first))

    def nodes(self):
        return {
            "down1": self.down1,
            "down2": self.down2,
            "mid": self.mid,
            "up2": (self.up2, "mid", "down2"),
            "up1": (self.up1, "up2", "down1"),
            "last": self.last,
        }


class Layer(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.mlp(self.norm(x)).tanh())


class Embedded(nn.Module):
    """Holds a table of the network: a module that the network itself does not have."""

    def __init__(self, network) -> None:
        super().__init__()
        self.tokens, self.positions = network.wte, network.positions

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions


class ClassesFirst(nn.Linear):
    def forward(self, x):
        return super().forward(x).movedim(-1, 1)


class Gpt(nn.Module):
    """The head's weight is the embedding's; positions are a parameter of the network itself."""

    def __init__(self, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.randn(6, WIDTH) * 0.1)
        self.layers = nn.ModuleList(Layer(WIDTH, dropout) for _ in range(layers))
        self.head = ClassesFirst(WIDTH, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def nodes(self):
        layers = {f"layers.{at}": one for at, one in enumerate(self.layers)}
        return {"embedded": Embedded(self), **layers, "head": self.head}

    def residual(self):
        return [f"layers.{at}" for at in range(len(self.layers))]


class Two(nn.Module):
    """A root of two layers, whose forward others change."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.b(self.a(x))

    def nodes(self):
        return {"a": self.a, "b": self.b}


class MeanInForward(Two):
    def forward(self, x):
        a = self.a(x)
        return self.b(a - a.mean())


class LayerDrop(Two):
    def forward(self, x):
        a = self.a(x)
        return self.b(a * 2 if self.training and random.random() < 1e-9 else a)


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, gradient):
        return -gradient


class Reversed(Two):
    """The outputs are those of its parts, and the gradients are not."""

    def forward(self, x):
        return self.b(Reversal.apply(self.a(x)))


class HiddenTie(Two):
    """A part uses another part's parameter through a list, which no module is registered in."""

    class Both(nn.Linear):
        def forward(self, x):
            return super().forward(x) + self.others[0](x[:, :WIDTH])[:, :CLASSES]

    def __init__(self) -> None:
        super().__init__()
        self.b = self.Both(16, CLASSES)
        self.b.others = [self.a]


class OwnTensor(Two):
    """A part has a parameter that the network has not."""

    def nodes(self):
        return {"a": self.a, "scale": nn.PReLU(), "b": self.b}


class OneNode(nn.Module):
    """No parts: all of it is one node, which runs as it is, whatever its forward does; a layer has the name of the node."""

    def __init__(self) -> None:
        super().__init__()
        self.onenode, self.norm, self.b = nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("shift", torch.linspace(0, 1, 16), persistent=False)
        self.pooler = nn.Linear(16, 16)  # not used

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = self.onenode(x)
        return self.b(Reversal.apply(self.norm(a.float()).tanh() * self.scale + self.shift))


class TwoNames(nn.Module):
    """One module under two names, a buffer that the state_dict leaves out, a layer that no forward uses, names of a node's own attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(WIDTH, 16), nn.Linear(16, 16)])
        self.last = self.body[-1]
        self.inputs = Shifted()
        self.options = nn.Linear(16, CLASSES)
        self.pooler = nn.Linear(16, 16)

    def forward(self, x):
        return self.options(self.inputs(self.last(self.body[0](x))))

    def nodes(self):
        return {"first": self.body[0], "last": self.last, "inputs": self.inputs, "options": self.options}


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.linspace(0, 1, 16), persistent=False)

    def forward(self, x):
        return x.tanh() + self.shift


def plain() -> nn.Sequential:
    """Children are nodes."""
    layers = nn.Sequential(*(Layer(16, 0.1) for _ in range(2)))
    whole = nn.Sequential()
    for name, module in (("stem", nn.Linear(WIDTH, 16)), ("layers", layers), ("head", nn.Linear(16, CLASSES))):
        whole.add_module(name, module)
    return whole
