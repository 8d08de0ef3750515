"""The parts of a backward that are operations of their own: by what they cost, and by what a block can do."""

from __future__ import annotations

import pytest

from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.worthwhile_parts import worthwhile_words
from petra_graph.kinds.block import BLOCK
from petra_graph.program.node_costs import Profile
from petra_graph.registry.local_plugins import resolve_local
from tests.support.blocks import Sound
from tests.support.costs import costs
from tests.support.pipelines import BLOCKS, CLASSES, node
from tests.support.settings import setting

EACH = (("stem",), ("rev0",), ("rev1",), ("rev2",), ("head",))
BELOW, ABOVE = 0.03 - 1e-6, 0.03 + 1e-6


def profile(parts):
    """A profile that has timed the parts; the seconds of whole operations are those of `setting`."""
    return Profile(
        name="", device="", device_type="cpu", kind="cpu", micro_batch=1, threads=1, settings={}, nodes={}, sizes={}, parts=parts,
        outside=0.0, link=None,
    )  # fmt: skip


def shares(*, three: float, two: float, forward: float = 0.0):
    """Parts that together take so much more than the whole: R, I and W; R and B."""
    return {
        "forward": forward,
        "reconstruct": 0.25,
        "input_gradient": 0.25,
        "parameter_gradient": 0.5 + three - forward,
        "backward": 0.75 + two - forward,
    }


def words(parts=None, stages=EACH, **changes):
    used = setting(profile=None if parts is None else profile(parts), **changes)
    return worthwhile_words(used, used.programs(partition(used.graph, stages, ["d0"]), used.schedule))


@pytest.mark.parametrize("name", ["stem", "rev1", "head"])
@pytest.mark.parametrize(
    ("three", "two", "word"),
    [
        (0.0, 0.0, "FRIW"),
        (BELOW, ABOVE, "FRIW"),
        (ABOVE, BELOW, "FRB"),
        (ABOVE, ABOVE, "FB"),
    ],
    ids=["no more", "three parts", "two parts", "whole"],
)
def test_a_stage_has_as_many_parts_as_cost_at_most_three_percent_more(name, three, two, word):
    forward = 0.25 if name == "head" else 0.0
    found = words({name: shares(three=three, two=two, forward=forward)})
    assert found == tuple(word if name in stage else "FRIW" for stage in EACH)


def test_a_data_sheet_splits_all_backwards():
    assert words() == ("FRIW",) * 5


def test_parts_timed_at_less_than_the_whole_do_not_pay_for_those_of_another_node():
    """Together they would take 0.95 of both wholes."""
    parts = {"rev0": shares(three=-0.2, two=-0.2), "rev1": shares(three=0.1, two=0.1)}
    assert words(parts, stages=(("stem",), ("rev0", "rev1"), ("rev2", "head")))[1] == "FB"


def test_nodes_of_a_stage_are_judged_by_their_sum():
    parts = {"rev0": shares(three=0.0, two=0.0), "rev1": shares(three=0.05, two=0.05)}
    assert words(parts, stages=(("stem",), ("rev0", "rev1"), ("rev2", "head")))[1] == "FRIW"


class OwnBackward(Sound):
    """A block whose author reconstructs and differentiates at once."""

    def reverse_vjp(self, outputs, gradients):
        return super().reverse_vjp(outputs, gradients)


@pytest.mark.parametrize(("method", "word"), [("petra", "FB"), ("dsp", "FRIW")])
def test_a_block_with_a_backward_of_its_own_is_split_only_where_it_keeps_its_input(monkeypatch, method, word):
    """To return its input ahead of the gradient it would invert twice; no timing shows that it is worth it."""
    monkeypatch.setitem(BLOCKS, "own-backward", resolve_local(BLOCK, f"{__name__}:OwnBackward", ()))
    nodes = (
        node("stem", "linear-stem", features=6),
        node("rev0", "rev-mlp", hidden=7, activation="tanh"),
        node("rev1", "own-backward"),
        node("rev2", "rev-mlp", hidden=7, activation="tanh"),
        node("head", "pool-linear", outputs=CLASSES),
    )
    found = words(nodes=nodes, table=costs(nodes, (8,), split=True), method=method)
    assert found == ("FRIW", "FRIW", word, "FRIW", "FRIW")
    timed = {"rev1": shares(three=0.0, two=0.0)}
    assert words(timed, nodes=nodes, table=costs(nodes, (8,)), method=method)[2] == word
