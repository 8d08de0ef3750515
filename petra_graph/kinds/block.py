"""A block: a part of a network, reversible or not, as nodes name it.

Decision: the promises of blocks are checked in the executor's own runners, which lie above this module, so that the kit accepts
exactly the blocks that training accepts. They are named by their locations, as the code of plugins is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from attrs import frozen

from petra_graph.kinds.declaration import Declaration, expect_among
from petra_graph.kinds.kind import Form, Part, PluginKind, Promise, When
from petra_graph.spec.model import Kind


@frozen(kw_only=True)
class BlockDeclaration(Declaration):
    """A block; `build` names a `petra_graph.blocks.Block` subclass, built as `cls(inputs, options)`.

    Attributes:
        kind: the most that the block can be: a reversible block may also be a buffered node.
        streams: the number of tensors that the block reads; None: any number.
    """

    kind: Literal["reversible", "buffered", "head"]
    streams: int | None = None

    def faults(self) -> Iterator[str]:
        yield from expect_among("kind", self.kind, get_args(Kind))
        count: Any = self.streams
        if count is not None and (type(count) is not int or count < 1):
            yield f"has streams = {count!r}, not the number of tensors that the block reads"

    @property
    def abilities(self) -> tuple[str, ...]:
        streams = "any number of" if self.streams is None else str(self.streams)
        return (self.kind, f"reads {streams} stream{'s' * (self.streams != 1)}")

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "streams": self.streams}


def _declared(block: Any, _: str) -> Mapping[str, Any]:
    return {"kind": block.kind, "streams": getattr(block, "streams", None)}


_KIT = {When.KIT: ""}
_IN_RUN = {When.BEFORE_RUN: "at a glance, in float32, and as the kit does where that finds something", **_KIT}
_OF_EXECUTOR = "petra_graph.promises"

BLOCK = PluginKind(
    noun="block",
    group="petra_graph.blocks",
    declaration=BlockDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and hasattr(value, "kind"),
        having="class with a `kind`, as blocks are",
        otherwise="is not a class with a `kind`, as blocks are",
        hint="subclass one of petra_graph.blocks, and give it an attrs class `Options`",
        declared=_declared,
    ),
    promises=(
        Promise(
            name="declaration",
            check=f"{_OF_EXECUTOR}.declared_blocks:check_declaration",
            asked={When.REGISTRATION: "its fields", **_KIT},
            foundation=True,
        ),
        Promise(
            name="construction",
            check=f"{_OF_EXECUTOR}.construction:check_construction",
            asked={When.BUILD: "one block", **_IN_RUN},
            foundation=True,
        ),
        Promise(
            name="shapes",
            check=f"{_OF_EXECUTOR}.streams:check_shapes",
            asked={When.BUILD: "on the meta device", **_IN_RUN},
            foundation=True,
        ),
        Promise(name="streams untouched", check=f"{_OF_EXECUTOR}.streams:check_streams_untouched", asked=_IN_RUN),
        Promise(
            name="inverse",
            check=f"{_OF_EXECUTOR}.backward:check_inverse",
            asked=_IN_RUN,
            applies=lambda trial: trial.is_reversible,
        ),
        Promise(
            name="one evaluation",
            check=f"{_OF_EXECUTOR}.backward:check_one_evaluation",
            asked=_KIT,
            applies=lambda trial: trial.has_residuals,
        ),
        Promise(name="gradients", check=f"{_OF_EXECUTOR}.backward:check_gradients", asked=_KIT),
        Promise(name="recomputation", check=f"{_OF_EXECUTOR}.evaluation:check_recomputation", asked=_IN_RUN),
        Promise(
            name="statistics",
            check=f"{_OF_EXECUTOR}.state:check_statistics",
            asked={**_IN_RUN, When.FIRST_STEPS: "what two passes of each node change"},
        ),
        Promise(
            name="randomness",
            check=f"{_OF_EXECUTOR}.evaluation:check_randomness",
            asked={**_IN_RUN, When.FIRST_STEPS: "the generators without a key, in two passes of each node"},
        ),
        Promise(name="autocast", check=f"{_OF_EXECUTOR}.backward:check_autocast", asked=_KIT),
        Promise(name="evaluation mode", check=f"{_OF_EXECUTOR}.evaluation:check_evaluation_mode", asked=_IN_RUN),
        Promise(name="state dictionary", check=f"{_OF_EXECUTOR}.state:check_state_dict", asked=_KIT),
        Promise(name="meta device", check=f"{_OF_EXECUTOR}.streams:check_meta_device", asked=_KIT),
    ),
    trial=f"{_OF_EXECUTOR}.trial:Trial",
    trials=f"{_OF_EXECUTOR}.likely_blocks:likely_blocks",
    parts=(
        Part(
            kind="block",
            summary="a reversible block: an additive coupling",
            example="rev-tanh",
            suffix="block",
            module=("blocks.py", "The blocks, imported when a network is built."),
            stand_in="rev-basic",
        ),
        Part(
            kind="buffered-block",
            summary="a block that may change shapes, whose input is stored",
            example="image-patches",
            suffix="stem",
            module=("blocks.py", "The blocks, imported when a network is built."),
            stand_in="conv-stem",
        ),
        Part(
            kind="head-block",
            summary="a last block, whose output the loss reads",
            example="mean-head",
            suffix="head",
            module=("blocks.py", "The blocks, imported when a network is built."),
            stand_in="pool-linear",
        ),
    ),
)
