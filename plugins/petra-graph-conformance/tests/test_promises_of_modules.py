"""Broken on purpose: types, states, modes, devices, declarations. The function that checks the promise catches each."""

from __future__ import annotations

import pytest
import torch
from attrs import define, evolve, frozen
from petra_graph_conformance import BrokenPromise, Trial, check_imports_no_torch
from petra_graph_conformance.blocks.block_declaration import check_declaration
from petra_graph_conformance.blocks.inverse_and_gradients import check_autocast
from petra_graph_conformance.blocks.learned_and_running_state import check_state_dict
from petra_graph_conformance.blocks.repeatable_evaluation import check_evaluation_mode
from petra_graph_conformance.blocks.shapes_and_streams import check_meta_device
from torch import nn

from petra_graph.blocks import (
    BlockDeclaration,
    Buffered,
)
from tests.support.blocks import SHAPE, Sound, Stem, caught
from tests.support.kit import importable

HERE = importable(__name__)


class ReversesInFloat32(Sound):
    def reverse_vjp(self, outputs, gradients):
        with torch.autocast("cpu", enabled=False):
            return super().reverse_vjp(outputs, gradients)


def test_another_type_in_backward():
    message = caught(check_autocast, ReversesInFloat32)
    assert "returned bfloat16 in forward and float32 in backward" in message


class HiddenScale(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = torch.rand(inputs[0], dtype=torch.float64)

    def residual(self, x):
        return super().residual(x) * self.scale


class RandomWidth(Stem):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, int(torch.randint(1, 10**4, ())))


def test_what_the_state_dictionary_does_not_hold():
    assert "a block that has loaded it gives other outputs in training mode" in caught(check_state_dict, HiddenScale)
    assert "another block of the same options does not take it: size mismatch" in caught(check_state_dict, RandomWidth)


class CentresTheBatch(Stem):
    def forward(self, x):
        return (self.linear(x - x.mean(0)),)


class AlwaysCounts(Stem):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class AlwaysDrops(Stem):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (CentresTheBatch, "a batch's outputs are not those of its samples: relative error"),
        (AlwaysCounts, "seen changed"),
        (AlwaysDrops, "random numbers were drawn"),
    ],
)
def test_evaluation_that_is_none(block, message):
    assert message in caught(check_evaluation_mode, block)


class ReadsValues(Sound):
    def residual(self, x):
        return super().residual(x) * (2 if x.sum().item() > 0 else 1)


class LeavesAConstantBehind(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = torch.ones(inputs[0])

    def residual(self, x):
        return super().residual(x) * self.scale


def test_what_the_meta_device_cannot_run():
    message = caught(check_meta_device, ReadsValues)
    assert f"built there, it raised RuntimeError at {__file__}:" in message
    assert "moved there, it raised RuntimeError" in caught(check_meta_device, LeavesAConstantBehind)


@define
class Loose:
    size: int = 3


@frozen(kw_only=True)
class Kept:
    size: int = 3


class Tunable(Sound):
    Options = Kept


class LooseTunable(Sound):
    Options = Loose


class Pretends(Buffered):
    kind = "reversible"

    def forward(self, x):
        return (x,)


def declaration(block, **changes):
    own = {"kind": block.kind, "streams": block.streams, "options": block.Options}
    return BlockDeclaration(summary="A block.", build=f"{HERE}:{block.__name__}", **{**own, **changes})


def test_declarations_that_disagree_with_their_class():
    def message(declared, count=2):
        with pytest.raises(BrokenPromise) as error:
            check_declaration(Trial.of(declared, [SHAPE] * count))
        return str(error.value)

    check_declaration(Trial.of(declaration(Tunable), [SHAPE, SHAPE], {"size": 4}))
    assert "it declares kind = 'buffered', and Tunable has 'reversible'" in message(
        declaration(Tunable, kind="buffered")
    )
    assert "it declares streams = 3, and Tunable has 2" in message(declaration(Tunable, streams=3))
    assert "it declares options = " in message(declaration(LooseTunable, options=Kept))
    assert "it has no summary" in message(BlockDeclaration(summary="", build=f"{HERE}:Sound", kind="reversible"))
    assert "options class Loose can be changed or takes positional values" in message(declaration(LooseTunable))
    assert "it reads 2 streams, and the trial has 1 inputs" in message(declaration(Sound), 1)
    assert "Pretends does not subclass Reversible" in message(declaration(Pretends), 1)


def test_what_a_class_does_not_state_its_declaration_says_alone():
    class Silent(Buffered):
        def forward(self, x):
            return x

    stated = BlockDeclaration(summary="A block.", build="x:y", kind="buffered", streams=1, options=Kept)
    trial = evolve(Trial.of(Silent, [SHAPE]), declaration=stated)
    check_declaration(trial)
    with pytest.raises(BrokenPromise, match="it declares kind = 'head', and Silent has 'buffered'"):
        check_declaration(evolve(trial, declaration=evolve(stated, kind="head")))


@pytest.mark.processes
def test_declarations_that_import_torch():
    check_imports_no_torch("petra_graph.kinds.all_kinds")
    with pytest.raises(BrokenPromise, match=r"no torch: importing petra_graph\.blocks imports torch"):
        check_imports_no_torch("petra_graph.blocks")
