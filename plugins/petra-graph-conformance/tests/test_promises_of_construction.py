"""Broken on purpose: parameters that are tied, lazy or unkeyed, methods that are missing, outputs without a gradient."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from petra_graph_conformance import Trial
from petra_graph_conformance.blocks.alike_blocks import check_construction
from petra_graph_conformance.blocks.block_declaration import check_declaration
from petra_graph_conformance.blocks.shapes_and_streams import check_shapes
from torch import nn

from petra_graph.blocks import AdditiveCoupling, BlockDeclaration, Buffered, Reversible
from tests.support.blocks import SHAPE, Sound, Stem, caught
from tests.support.kit import importable, kept

HERE = importable(__name__)

SHARED = nn.Linear(6, 6)


class TiedToAll(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = SHARED


class TiedInside(Sound):
    """One weight in two layers of one block: they are one node, whose parameters are stepped once."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.linear.weight

    def residual(self, x):
        return self.again(super().residual(x))


class Lazy(Stem):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.LazyLinear(4)


class NumpyBegins(Stem):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        with torch.no_grad():
            self.linear.bias += torch.as_tensor(np.random.rand(4))  # noqa: NPY002  the global generator is the point


class PlainList(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.layers = [nn.Linear(6, 6), nn.ReLU()]


class PlainContainers(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.within = nn.Module()
        self.within.scale, self.by_name = torch.ones(6, requires_grad=True), {"a": (nn.Parameter(torch.ones(6)),)}


class Rotates(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.phase = nn.Parameter(torch.ones(6, dtype=torch.complex64))
        self.register_buffer("turns", torch.ones(6, dtype=torch.complex128), persistent=False)


class HoldsTwice(Sound):
    """A list of registered layers, a frozen teacher hidden in a tuple, a constant, a value that follows from a parameter."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.lstm = nn.utils.parametrizations.weight_norm(nn.LSTM(6, 6), "weight_hh_l0")
        self.layers = [self.linear]
        self.teacher = (nn.Linear(6, 6).requires_grad_(False),)
        self.table, self.size = torch.ones(6), self.linear.weight.norm()


class ExemptsNothing(Sound):
    undecayed = ("lienar.*",)


class HasNoTable(Sound):
    tables = "positions"


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(
    ("block", "message"),
    [
        (TiedToAll, "two blocks share linear.weight, linear.bias, and would be two nodes of different stages"),
        (Lazy, "the block has parameters without a shape before the first forward: linear.weight, linear.bias"),
        (HasNoTable, "the block has tables = 'positions', not a tuple of names of parameters"),
        (
            ExemptsNothing,
            r"the block has no parameter 'lienar.*', which its `undecayed` names; it has linear.weight, linear.bias",
        ),
        (
            PlainList,
            "the block holds what requires a gradient and is not a parameter, so that it is neither updated nor saved: layers[0].weight, layers[0].bias",
        ),
        (
            PlainContainers,
            "the block holds what requires a gradient and is not a parameter, so that it is neither updated nor saved: by_name['a'][0], within.scale",
        ),
        (
            Rotates,
            (
                "the block has complex parameters or buffers, whose imaginary parts a real type would drop: "
                "phase (torch.complex64), turns (torch.complex128)"
            ),
        ),
        (NumpyBegins, "two blocks of one key begin with other values in linear.bias"),
    ],
)
def test_a_block_that_is_not_built_from_its_key_alone(block, message):
    assert f"construction: {message}\n" in caught(check_construction, block)
    with pytest.raises(AssertionError, match="breaks a promise\nconstruction: " + re.escape(message)):
        kept(Trial.of(block, [SHAPE] * block.streams))


def test_what_is_registered_or_frozen_may_be_held_in_a_list():
    check_construction(Trial.of(HoldsTwice, [SHAPE, SHAPE]))


def test_a_weight_in_two_layers_of_a_block_is_no_fault():
    kept(Trial.of(TiedInside, [SHAPE, SHAPE]))


class NoInverse(Reversible):
    streams = 1

    def forward(self, x):
        return (x + 1,)


class NoResidual(AdditiveCoupling):
    pass


@pytest.mark.parametrize(("block", "name"), [(NoInverse, "inverse"), (NoResidual, "residual")])
def test_a_method_that_is_missing_is_named_once(block, name):
    with pytest.raises(AssertionError) as error:
        kept(Trial.of(block, [SHAPE] * block.streams))
    assert str(error.value).count("\n") == 2
    assert f"declaration: {block.__name__} does not define `{name}`\n" in str(error.value)


def test_a_reversible_block_that_is_declared_buffered_needs_no_inverse():
    class Declared(NoInverse):
        kind = "buffered"

    declaration = BlockDeclaration(summary="x", build=f"{HERE}:none", kind="buffered", streams=1)
    trial = Trial(block_class=Declared, declaration=declaration, inputs=(SHAPE,), options=Declared.Options())
    with pytest.raises(AssertionError, match="does not subclass Buffered"):
        check_declaration(trial)


class Whole(Stem):
    def forward(self, x):
        return (super().forward(x)[0].argmax(1, keepdim=True),)


class Signs(Stem):
    def forward(self, x):
        (y,) = super().forward(x)
        return y, y > 0


class HalfPrecision(Stem):
    def forward(self, x):
        return (super().forward(x)[0].half(),)


class EmbedsAndMasks(Buffered):
    """Reads tokens, and hands on which of them are padding."""

    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(10, 3)

    def forward(self, tokens):
        return self.table(tokens), tokens == 0


class HandsOn(Buffered):
    """Reads a stream and a mask, and hands on the mask."""

    streams = 2

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(3, 3)

    def forward(self, x, mask):
        return self.linear(x), mask


class MasksSamples(Stem):
    """Says which numbers of a sample are missing."""

    def forward(self, x):
        return (*super().forward(x), (x < 0).long())


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Whole, "all outputs are int64"),
        (Signs, "output 1 is bool, and follows from parameters"),
        (HalfPrecision, "an output is float16 where parameters and inputs are float64"),
    ],
)
def test_outputs_without_a_gradient(block, message):
    assert f"shapes: {message}\n" in caught(check_shapes, block)


def test_integers_may_be_handed_on():
    def tokens(shape, generator):
        return torch.randint(10, shape, generator=generator)

    def stream_or_mask(shape, generator):
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn if shape[-1] == 3 else drawn > 0

    kept(Trial.of(EmbedsAndMasks, [(5,)], draw=tokens))
    kept(Trial.of(HandsOn, [(5, 3), (5,)], draw=stream_or_mask))
    kept(Trial.of(MasksSamples, [SHAPE]))
