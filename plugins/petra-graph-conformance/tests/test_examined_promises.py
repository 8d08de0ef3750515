"""All promises at once: those that apply to a class, and the messages for authors."""

from __future__ import annotations

import json

import pytest
import torch
from petra_graph_conformance import Trial
from petra_graph_conformance.examined_promises import examine
from torch import nn

from petra_graph.blocks import AdditiveCoupling, BlockDeclaration, Buffered
from petra_graph.errors import SpecError
from tests.support.blocks import SHAPE, Scaled, Stem
from tests.support.kit import PROMISES, kept


class TwiceWrong(AdditiveCoupling):
    """Its inverse adds, and its constant stays on the CPU."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = torch.full((1,), 0.5)

    def residual(self, x):
        return x * self.scale

    def inverse(self, y, s):
        return s, y + self.residual(s)


class NotATuple(AdditiveCoupling):
    def residual(self, x):
        return x

    def forward(self, x, t):
        return [t + x, x]


class Raises(AdditiveCoupling):
    def residual(self, x):
        if x.requires_grad:
            raise ArithmeticError("not with a graph")
        return x


class Embeds(Buffered):
    """Reads tokens."""

    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(10, 3)

    def forward(self, tokens):
        return (self.table(tokens),)


def broken(block, **given):
    with pytest.raises(AssertionError) as error:
        kept(Trial.of(block, [(2,), (2,)], **given))
    return str(error.value)


def test_all_broken_promises_are_reported_at_once():
    first, *rest = broken(TwiceWrong).splitlines()
    assert first == "TwiceWrong (2, 2; NoOptions()) breaks 2 promises"
    assert [line for line in rest if not line.startswith("    do: ")] == [
        line
        for line in rest
        if line.startswith(("inverse: inverse(*forward(*x)) is not x", "meta device: moved there"))
    ]
    assert len(rest) == 4


def test_a_broken_foundation_is_reported_alone():
    assert broken(NotATuple) == (
        """\
NotATuple (2, 2; NoOptions()) breaks a promise
shapes: forward returned list
    do: return a tensor, or a tuple of tensors"""
    )


def test_an_error_of_the_block_is_reported_once_with_its_line():
    """What ends several checks stands once, behind the names of the promises; none of them is that streams are untouched."""
    message = broken(Raises)
    _, names = message.partition(": it raised ArithmeticError at ")[0].split("\n")
    assert names.startswith("randomness, recomputation, inverse, gradients, ")
    assert message.count("ArithmeticError") == 1
    assert "test_examined_promises.py:" in message
    assert "not with a graph" in message


def test_only_promises_that_apply_are_checked():
    def asked(*trial):
        return [outcome.promise for outcome in examine(Trial.of(*trial)).outcomes]

    every = [name for name in PROMISES["block"] if name != "package"]
    assert asked(TwiceWrong, [(2,), (2,)]) == [*every]
    assert {*every} - {*asked(Scaled, [SHAPE])} == {"one evaluation"}
    assert {*every} - {*asked(Stem, [SHAPE])} == {"inverse", "one evaluation"}


def test_a_report_has_every_promise():
    report = kept(Trial.of(Stem, [SHAPE]))
    assert (report.kind, report.name, report.trial, report.kept) == ("block", "Stem", "6; NoOptions()", True)
    assert {outcome.status for outcome in report.outcomes} == {"kept"}
    assert str(report) == "Stem (6; NoOptions()) keeps 18 promises"
    broken = examine(Trial.of(NotATuple, [(2,), (2,)]))
    assert [outcome.promise for outcome in broken.broken] == ["shapes"]
    assert [outcome.status for outcome in broken.outcomes] == ["kept", "kept", "broken"] + ["not checked"] * 17
    assert json.loads(json.dumps(broken.record()))["outcomes"][2] == {
        "promise": "shapes",
        "status": "broken",
        "found": "forward returned list",
        "remedy": "return a tensor, or a tuple of tensors",
    }


def test_tokens_can_be_drawn():
    kept(Trial.of(Embeds, [(5,)], draw=lambda shape, generator: torch.randint(10, shape, generator=generator), batch=2))


def test_options_are_read_as_a_spec_would():
    with pytest.raises(SpecError, match="hidden"):
        kept(Trial.of(Raises, [(2,), (2,)], {"hidden": 3}))
    with pytest.raises(TypeError, match=r"options must be a mapping or NoOptions \(got int\)"):
        kept(Trial.of(Raises, [(2,), (2,)], 3))


def test_a_declaration_that_names_no_block_is_refused():
    declaration = BlockDeclaration(summary="No block.", build="torch:nn.ReLU", kind="buffered")
    with pytest.raises(TypeError, match=r"torch:nn\.ReLU is not a subclass of petra_graph\.blocks\.Block"):
        kept(Trial.of(declaration, [(2,)]))
