"""Right plugins of which a first guess knows little: `petra-graph check` finds inputs for them, and breaks no promise of theirs."""

from __future__ import annotations

import pytest
import torch
from petra_graph_conformance import LossTrial, Trial
from petra_graph_conformance.blocks.shapes_and_streams import check_meta_device
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.likely_trials import NoGuessFits, likely_trial
from petra_graph_conformance.outputs_and_targets import TARGETS
from petra_graph_conformance.plugin_trial import as_plugin
from torch import nn
from torch.nn import functional

from petra_graph.blocks import AdditiveCoupling, Buffered, Head
from petra_graph.kinds.architecture import ARCHITECTURE
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.loss import LOSS
from petra_graph.plugins import (
    ArchitectureDeclaration,
    BlockDeclaration,
    DataFacts,
    LossDeclaration,
    NodeSpec,
    SpecError,
)
from tests.support.kit import importable, kept

HERE = importable(__name__)


class Embeds(Buffered):
    """Tokens of a small vocabulary, with sparse gradients."""

    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(4, 3, sparse=True)

    def forward(self, tokens):
        return (self.table(tokens),)


class EachPixel(Head):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.conv = nn.Conv2d(inputs[0][0], 5, 1)

    def forward(self, x):
        return (self.conv(x),)


class OfOneLength(AdditiveCoupling):
    """A 1-d convolution of sequences of 37."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.conv = nn.Conv1d(inputs[0][0], inputs[0][0], 5, padding=2)
        self.scale = nn.Parameter(torch.ones(37))

    def residual(self, x):
        return self.conv(x).tanh() * self.scale


class WideImages(Buffered):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        channels, height, width = inputs[0]
        if height >= width:
            raise ValueError("spectrograms are wide")
        self.conv = nn.Conv2d(channels, 2, (height, 3), padding=(0, 1))

    def forward(self, x):
        return (self.conv(x).squeeze(2),)


class OneOutput(Head):
    streams = 2

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][-1], 1)

    def forward(self, x, t):
        return (self.linear((x + t).flatten(1, -2).mean(1)),)


class Recurrent(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        _, width = inputs[0]
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def residual(self, x):
        return self.lstm(x)[0]


class Row(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        width = inputs[0][-1]
        self.linear = nn.Linear(width, width)

    def residual(self, x):
        return self.linear(x).tanh()


class Tied(Row):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.down = nn.Linear(inputs[0][-1], inputs[0][-1])
        self.down.weight = self.linear.weight

    def residual(self, x):
        return self.down(super().residual(x))


class Orthogonal(Row):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        nn.utils.parametrizations.orthogonal(self.linear)


class _SpectralNorm(nn.Module):
    def forward(self, weight):
        return weight / torch.linalg.matrix_norm(weight.float(), 2).to(weight.dtype)


class NormInFloat32(Row):
    """With a graph, torch takes another way to singular values, so that they differ by a rounding of float32."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        nn.utils.parametrize.register_parametrization(self.linear, "weight", _SpectralNorm())


class OfAMask(Row):
    """The meta device knows no size of what a mask chooses."""

    def residual(self, x):
        y = super().residual(x)
        return torch.zeros_like(y).masked_scatter(x > 0, y[x > 0])


class Frequencies(Row):
    keep_dtype = ("frequencies",)

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.register_buffer("frequencies", torch.linspace(0, 1, inputs[0][-1], dtype=torch.float64))

    def residual(self, x):
        return super().residual(torch.fft.irfft(torch.fft.rfft(x * self.frequencies.to(x.dtype)), n=x.shape[-1]))


class ThreeStreams(Buffered):
    streams = 3

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(sum(shape[-1] for shape in inputs), 2)

    def forward(self, a, b, c):
        return self.linear(torch.cat([a, b, c], -1)), c


def plugin_of(block):
    declaration = BlockDeclaration(
        summary="x", build=f"{HERE}:{block.__name__}", kind=block.kind, streams=getattr(block, "streams", None)
    )
    return as_plugin(BLOCK, declaration)


@pytest.mark.parametrize(
    ("block", "inputs"),
    [
        (Embeds, "10 (tokens below 2)"),
        (EachPixel, "8x6x6"),
        (OfOneLength, "4x37, 4x37"),
        (WideImages, "8x6x10"),
        (OneOutput, "8x6x6, 8x6x6"),
        (Recurrent, "10x16, 10x16"),
        (Tied, "8x6x6, 8x6x6"),
        (Orthogonal, "8x6x6, 8x6x6"),
        (NormInFloat32, "8x6x6, 8x6x6"),
        (OfAMask, "8x6x6, 8x6x6"),
        (Frequencies, "8x6x6, 8x6x6"),
        (ThreeStreams, "8x6x6, 8x6x6, 8x6x6"),
    ],
)
def test_a_block(block, inputs):
    if block is Recurrent and not has_lstms_in_bfloat16():
        pytest.skip("oneDNN has no LSTM in bfloat16 on this processor")
    report = examine(likely_trial(plugin_of(block), {}))
    assert report.trial == f"{inputs}; NoOptions()"
    assert report.kept, str(report)


def has_lstms_in_bfloat16():
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError:
        return False
    return True


class ReadsAValue(Row):
    def residual(self, x):
        return super().residual(x) * (1 if x.sum().item() < 1e9 else 2)


def test_a_value_that_the_author_reads_is_still_refused_on_the_meta_device():
    with pytest.raises(AssertionError, match=r"meta device: built there, it raised RuntimeError at .*\.item\(\)"):
        check_meta_device(Trial.of(ReadsAValue, [(6,), (6,)]))


class Off(NormInFloat32):
    def inverse(self, y, s):
        x, t = super().inverse(y, s)
        return x, t * (1 + 1e-6)


def test_a_part_in_float32_excuses_no_inverse_that_is_off():
    with pytest.raises(AssertionError, match=r"inverse\(\*forward\(\*x\)\) is not x: .* allowed 9.1e-13"):
        kept(Trial.of(Off, [(6,), (6,)]))


class PerPixel:
    def __init__(self, options):
        pass

    def __call__(self, output, target):
        _, _, height, width = output.shape
        return functional.cross_entropy(output, target.view(-1, height, width))

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).double().mean((1, 2)).sum()}


class PerToken(PerPixel):
    def __call__(self, output, target):
        assert target.shape == output.shape[:2]
        return functional.cross_entropy(output.transpose(1, 2), target)

    def metrics(self, output, target):
        return {"top1": (output.argmax(-1) == target).double().mean(1).sum()}


class Flattens(PerPixel):
    """Its loss would take single classes, and its metrics do not."""

    def __call__(self, output, target):
        return functional.cross_entropy(output, target)

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).flatten(1).double().mean(1).sum()}


class OneLogit(PerPixel):
    def __call__(self, output, target):
        assert output.shape[1:] == (1,)
        assert target.dtype == torch.int64
        return functional.binary_cross_entropy_with_logits(output.squeeze(1), target.to(output.dtype))

    def metrics(self, output, target):
        return {"top1": ((output.squeeze(1) > 0) == (target > 0)).sum()}


class Labels(PerPixel):
    def __call__(self, output, target):
        assert set(target.unique().tolist()) <= {0.0, 1.0}
        return functional.binary_cross_entropy_with_logits(output, target.to(output.dtype))

    def metrics(self, output, target):
        return {}


class OneNumber(Labels):
    def __call__(self, output, target):
        assert output.shape[1:] == (1,)
        return functional.mse_loss(output.squeeze(1), target.to(output.dtype).view(len(output)))


class ThreeWeights(Labels):
    weights = torch.tensor([1.0, 2.0, 3.0])

    def __call__(self, output, target):
        return functional.cross_entropy(output, target, weight=self.weights.to(output.dtype))

    def target_weight(self, target):
        return float(self.weights[target].sum())

    def target_count(self, target):
        return len(target)


def loss_plugin(loss):
    return as_plugin(LOSS, LossDeclaration(summary="x", build=f"{HERE}:{loss.__name__}"))


@pytest.mark.parametrize(
    ("loss", "inputs"),
    [
        (PerPixel, "outputs [5, 8, 6]"),
        (PerToken, "outputs [6, 10], targets last-classes"),
        (Flattens, "outputs [10, 6]"),
        (OneLogit, "outputs [1]"),
        (Labels, "outputs [10], targets binary"),
        (OneNumber, "outputs [1], targets values"),
        (ThreeWeights, "outputs [3]"),
    ],
)
def test_a_loss(loss, inputs):
    report = examine(likely_trial(loss_plugin(loss), {}))
    assert report.trial == f"{inputs}; NoOptions()"
    assert report.kept, str(report)


def test_numbers_are_drawn_one_for_each_output():
    trial = LossTrial.of(loss_plugin(OneNumber), output=(1,), targets=TARGETS["numbers"])
    assert trial.batch()[1].shape == (8,)


def segmentation(options, facts):
    if len(facts.target_shape) != 2:
        raise SpecError("it needs a class for each pixel", "choose such a data set")
    return (NodeSpec(name="head", block=f"{HERE}:EachPixel", kind="head"),)


def misspelt(options, facts):
    if facts.dtype != "int64":
        raise SpecError("it reads tokens", "choose such a data set")
    return (NodeSpec(name="head", block="pool-liner", kind="head"),)


def refuses(options, facts):
    raise SpecError(f"not for {facts.shape}", "nothing helps")


def architecture_plugin(build):
    return as_plugin(ARCHITECTURE, ArchitectureDeclaration(summary="x", build=f"{HERE}:{build.__name__}"))


def test_an_architecture():
    trial = likely_trial(architecture_plugin(segmentation), {})
    assert trial.about == "samples 3x32x32, targets 32x32; NoOptions()"
    facts = DataFacts(shape=(3, 8, 6), classes=5, target_shape=(8, 6))
    trial = likely_trial(architecture_plugin(segmentation), {}, {"facts": facts})
    assert [one.status for one in examine(trial, leave_out=["no torch"]).outcomes[:4]] == ["kept"] * 4


def test_a_network_that_has_taken_the_samples_and_fails_is_broken():
    report = examine(likely_trial(architecture_plugin(misspelt), {}))
    assert 'unknown block "pool-liner"' in report.broken[0].found
    with pytest.raises(NoGuessFits, match=r"it takes none of 11 guessed inputs; [^\n]*\n.*--facts 'shape=\[3,48,64\]'"):
        likely_trial(architecture_plugin(refuses), {})


class OfSize(Row):
    def residual(self, x):
        return super().residual(x.view(-1, 999))


class Misspelt(Row):
    def residual(self, x):
        return self.liner(x)


class Quits(Row):
    def residual(self, x):
        raise SystemExit("no")


def test_what_takes_no_guess_is_not_tried_unless_its_code_fails_on_any_input():
    with pytest.raises(NoGuessFits) as caught:
        likely_trial(plugin_of(OfSize), {})
    [problem] = caught.value.problems
    assert problem.message.startswith("it takes none of 15 guessed inputs; with 8x6x6, 8x6x6; NoOptions() it raised R")
    assert problem.hint == "say what it takes, as in --inputs 8x6x6,8x6x6 or --tokens 50000"
    assert "no attribute 'liner'" in examine(likely_trial(plugin_of(Misspelt), {})).broken[0].found
    assert "SystemExit" in examine(likely_trial(plugin_of(Quits), {})).broken[0].found


def test_what_is_given_is_tried_alone():
    trial = likely_trial(plugin_of(OfSize), {}, {"inputs": [(999,), (999,)], "facts": None})
    assert trial.about == "999, 999; NoOptions()"
    assert likely_trial(plugin_of(Embeds), {}, {"inputs": [(7,)], "tokens": 4}).about.startswith("7 (tokens below 4)")
    assert likely_trial(loss_plugin(PerPixel), {}, {"output": (3, 2, 2)}).about == "outputs [3, 2, 2]; NoOptions()"
