"""A text in characters, and the blocks of a small causal MLP-Mixer that predicts each character from those before it."""

from pathlib import Path

import sklearn.datasets
import torch
from petra_graph.blocks import Buffered, Head, TwoFunctionCoupling
from petra_graph.plugins import DataFacts
from torch import nn

CHARACTERS, LENGTH, WIDTH = 128, 32, 64


class Descriptions:
    """What scikit-learn says of its data sets, in windows of ASCII; the last tenth of the text is for the test."""

    facts = DataFacts(shape=(LENGTH,), dtype="int64", classes=CHARACTERS, target_shape=(LENGTH,))

    def __init__(self):
        folder = Path(sklearn.datasets.__file__).parent / "descr"
        text = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.rst")))
        characters = torch.tensor(list(text.encode("ascii", "ignore")))
        cut = len(characters) * 9 // 10
        self.train, self.test = Windows(characters[:cut], step=8), Windows(characters[cut:], step=LENGTH)


class Windows:
    """Windows of a text, a step apart; the target of a character is the next one."""

    def __init__(self, characters, step):
        self.characters, self.step = characters, step

    def __len__(self):
        return (len(self.characters) - LENGTH - 1) // self.step + 1

    def fetch(self, indices, *, seed, epoch):
        windows = torch.stack([self.characters[i * self.step :][: LENGTH + 1] for i in map(int, indices)])
        return windows[:, :-1].clone(), windows[:, 1:].clone()


class Embedding(Buffered):
    """Characters [n, length] to two streams [n, length, width]."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.characters, self.places = nn.Embedding(CHARACTERS, 2 * WIDTH), nn.Embedding(LENGTH, 2 * WIDTH)

    def forward(self, characters):
        x = self.characters(characters) + self.places.weight
        return x.chunk(2, dim=2)


class CausalMixer(TwoFunctionCoupling):
    """Mixes each place with those before it, then the features of each place."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.places = nn.Parameter(torch.eye(LENGTH) + 0.02 * torch.randn(LENGTH, LENGTH))
        self.features = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def f(self, x):
        return self.places.tril() @ self.norms[0](x)

    def g(self, x):
        return self.features(self.norms[1](x))


class NextCharacter(Head):
    """Two streams to the scores of the next character at each place, [n, characters, length]."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.norm, self.linear = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, CHARACTERS)

    def forward(self, x, t):
        return self.linear(self.norm(torch.cat([x, t], dim=2))).transpose(1, 2)
