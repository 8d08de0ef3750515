"""Networks as people write them: nothing in them knows about petra-graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x, mask):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens with positions and a mask that all layers read; the head has the embedding's weight."""

    def __init__(self, tokens=11, width=8, layers=3, length=6, *, tied=True, dropout=0.1):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(tokens, width),
                "wpe": nn.Embedding(length, width),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(Layer(width, dropout) for _ in range(layers)),
                "norm": nn.LayerNorm(width),
            }
        )
        self.head = nn.Linear(width, tokens, bias=False)
        if tied:
            self.head.weight = self.transformer.wte.weight
        self.apply(self._begin)

    def _begin(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        n, length = tokens.size()
        positions = torch.arange(length, device=tokens.device)
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        if not mask.any():  # follows from sizes alone
            raise ValueError("nothing to attend to")
        mask = mask & (tokens > 0)[:, None, None, :] | torch.eye(length, dtype=torch.bool, device=tokens.device)
        x = self.transformer.drop(self.transformer.wte(tokens) + self.transformer.wpe(positions))
        for layer in self.transformer.h:
            x = layer(x, mask)
        assert x.shape[0] == n
        return self.head(self.transformer.norm(x)).transpose(1, 2)


class Rotary(nn.Module):
    """Angles that all layers share, without a row for each sample."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("rates", 1.0 / 100 ** (torch.arange(width) / width), persistent=False)

    @torch.no_grad()
    def forward(self, x, positions):
        angles = (positions[:, :, None] * self.rates).to(x.dtype)
        return angles.cos(), angles.sin()


class Turned(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, angles):
        return {"x": x + self.linear(x) * angles[0] + angles[1]}


class RotaryNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.model = nn.Module()
        self.model.embed, self.model.rotary = nn.Embedding(11, width), Rotary(width)
        self.model.layers = nn.ModuleList(Turned(width) for _ in range(3))
        self.head = nn.Linear(width, 5)

    def forward(self, tokens):
        x = self.model.embed(tokens)
        angles = self.model.rotary(x, torch.arange(tokens.shape[1], device=tokens.device)[None])
        for layer in self.model.layers:
            x = layer(x, angles=angles)["x"]
        return self.head(x)


class Double(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        layers = [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    """Skip edges from each resolution to the same one on the way up."""

    def __init__(self, widths=(4, 6)):
        super().__init__()
        self.down = nn.ModuleList(Double(*pair) for pair in zip((1, *widths), widths, strict=False))
        self.middle = Double(widths[-1], 8)
        self.up = nn.ModuleList(Double(*pair) for pair in ((8 + 6, 6), (6 + 4, 4)))
        self.last = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up in self.up:
            skip = skips.pop()
            x = functional.interpolate(x, size=skip.shape[2:])
            if x.shape[0] > 1:
                x = x + 0
            x = up(torch.cat([skip, x], dim=1))
        return self.last(x).mean((2, 3))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True, dropout=0.2)
        self.last = nn.Linear(7, 3)

    def forward(self, tokens):
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.last(functional.dropout(hidden[-1], 0.3, self.training))


class TimeFirst(nn.Module):
    """Samples in the second dimension, as layers of torch have them by default, and then in one with their tokens."""

    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(11, 6), nn.Parameter(torch.randn(6, 1, 6))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1) for _ in range(2))
        self.words, self.last = nn.ModuleList(nn.Linear(6, 6) for _ in range(2)), nn.Linear(6, 3)

    def forward(self, tokens):
        n, length = tokens.shape
        x = self.embedding(tokens.t()) + self.positions[:length]
        for layer in self.layers:
            x = layer(x)
        x = x.transpose(0, 1).reshape(n * length, 6)
        for layer in self.words:
            x = x + layer(x).tanh()
        return self.last(x.view(n, length, 6).mean(1))


class Float32Between(nn.Module):
    """A region without autocast holds an operation between modules, and one of the modules."""

    def __init__(self):
        super().__init__()
        self.first, self.inside, self.last = nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, rows):
        x = self.first(rows).tanh()
        with torch.autocast(rows.device.type, enabled=False):
            x = x.float()
            x = self.inside(x) + x @ x.t() @ x
        return self.last(x)


class Tagger(nn.Module):
    """A module returns a tuple, of which the next layer reads one value, and a later one the other."""

    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(11, 4), nn.GRU(4, 6, batch_first=True)
        self.middle, self.last = nn.ModuleList([nn.Linear(6, 6)]), nn.Linear(6, 5)

    def forward(self, tokens):
        states, hidden = self.rnn(self.embedding(tokens))
        return self.last(self.middle[0](states) + hidden[-1][:, None])


class Mixer(nn.Module):
    """Layers of one class as attributes, and operations in place on what others read."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 6, 2, 2)
        self.one, self.two, self.three = (nn.TransformerEncoderLayer(6, 2, 8, batch_first=True) for _ in range(3))
        self.last = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2).reshape(x.shape[0], 16, 6)
        begun = x
        x = self.one(x) + begun
        x += 1
        begun[:, 0] = 0
        x = self.three(functional.relu(self.two(x * self.scale), inplace=True))
        return self.last(x.mean(1) + begun.sum(1))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.one(x)
        return self.two(x if x.sum() > 0 else -x)


class Choosing(Branching):
    def forward(self, x):
        x = self.one(x)
        return self.two(x[x.sum(1) > 0])


class Unregistered(Branching):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(3)

    def forward(self, x):
        return self.two(self.one(x - self.mean))


class Dictionary(Branching):
    def forward(self, x):
        return {"logits": self.two(self.one(x)), "layers": 2}


class OtherInEvaluation(Branching):
    def forward(self, x):
        h = self.one(x)
        y = self.two(h)
        return y if self.training else h


class WithAMean(Branching):
    def forward(self, x):
        y = self.two(self.one(x))
        return y, y.mean()


class Flat(Branching):
    def forward(self, x):
        return self.two(self.one(x)).view(-1)


class InTraining(Branching):
    def forward(self, x):
        return self.two(self.one(x).relu() if self.training else self.one(x))


class Averaging(Branching):
    def forward(self, x):
        return self.two(self.one(x) * (1 / x.shape[0]))


class Towers(nn.Module):
    """Reads an image, and tokens, which no module of the image's tower reads."""

    def __init__(self, width=8):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(64, width), nn.Linear(width, width))
        self.words = nn.Embedding(11, width)
        self.text = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(3))
        self.last = nn.Linear(2 * width, 5)

    def forward(self, image, tokens):
        seen, read = self.image(image.flatten(1)), self.words(tokens)
        for layer in self.text:
            read = read + layer(read)
        return self.last(torch.cat([seen, read.mean(1)], 1))


class Twice(Branching):
    """One layer in two places."""

    def forward(self, x):
        return self.one(self.two(self.one(x)))
