"""A block: a part of a network, reversible or not, as nodes name it.

Decision: the promises of blocks are checked in the executor's own runners, which lie above this module, so that the kit accepts
exactly the blocks that training accepts. They are named by their locations, as the code of plugins is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from attrs import frozen

from petra_graph.kinds.declaration import Declaration, expect_among
from petra_graph.kinds.plugin_kind import Form, Part, PluginKind, Promise
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


_GLANCE = "at a glance, and one by one where that finds something"
_AT = "petra_graph.promises"
"""Where the checks are."""

BLOCK = PluginKind(
    noun="block",
    group="petra_graph.blocks",
    declaration=BlockDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and hasattr(value, "kind"),
        having="class with a `kind`, as blocks are",
        otherwise="is not a class with a `kind`, as blocks are",
        hint="subclass one of petra_graph.blocks, and give it an attrs class `Options`; or name any other torch.nn.Module as an option of "
        'the block "module"',
        declared=_declared,
    ),
    promises=(
        Promise(
            "declaration", f"{_AT}.block_declaration:check_declaration", registration="its fields", foundation=True
        ),
        Promise(
            "construction",
            f"{_AT}.alike_blocks:check_construction",
            build="one block",
            before_run=_GLANCE,
            foundation=True,
        ),
        Promise(
            "shapes",
            f"{_AT}.shapes_and_streams:check_shapes",
            build="on the meta device",
            before_run=_GLANCE,
            foundation=True,
        ),
        Promise("streams untouched", f"{_AT}.shapes_and_streams:check_streams_untouched", before_run=_GLANCE),
        Promise(
            "inverse",
            f"{_AT}.inverse_and_gradients:check_inverse",
            before_run=_GLANCE,
            applies=lambda trial: trial.is_reversible,
        ),
        Promise(
            "one evaluation",
            f"{_AT}.inverse_and_gradients:check_one_evaluation",
            applies=lambda trial: trial.has_residuals,
        ),
        Promise("gradients", f"{_AT}.inverse_and_gradients:check_gradients", before_run=_GLANCE),
        Promise(
            "every parameter",
            f"{_AT}.inverse_and_gradients:check_every_gradient",
            first_steps="three steps: a warning",
            kit="16 micro-batches at most",
        ),
        Promise("recomputation", f"{_AT}.repeatable_evaluation:check_recomputation", before_run=_GLANCE),
        Promise("same block", f"{_AT}.alike_blocks:check_same_block", before_run=_GLANCE),
        Promise(
            "statistics",
            f"{_AT}.learned_and_running_state:check_statistics",
            before_run=_GLANCE,
            first_steps="what two passes of each node change",
        ),
        Promise(
            "randomness",
            f"{_AT}.repeatable_evaluation:check_randomness",
            before_run=_GLANCE,
            first_steps="the generators without a key, in two passes of each node",
        ),
        Promise("autocast", f"{_AT}.inverse_and_gradients:check_autocast"),
        Promise("evaluation mode", f"{_AT}.repeatable_evaluation:check_evaluation_mode", before_run=_GLANCE),
        Promise("state dictionary", f"{_AT}.learned_and_running_state:check_state_dict"),
        Promise("meta device", f"{_AT}.shapes_and_streams:check_meta_device"),
    ),
    trial=f"{_AT}.block_trial:Trial",
    trials=f"{_AT}.likely_blocks:likely_blocks",
    settings={"inputs": "8x6x6,8x6x6", "tokens": "50000"},
    parts=(
        Part(
            kind="block",
            summary="a reversible block: an additive coupling",
            example="rev-tanh",
            suffix="block",
            entry="declared:RevTanh",
            module=("blocks.py", "The blocks, imported when a network is built."),
            stand_in="rev-basic",
        ),
        Part(
            kind="buffered-block",
            summary="a block that may change shapes, whose input is stored",
            example="image-patches",
            suffix="stem",
            entry="declared:ImagePatches",
            module=("blocks.py", "The blocks, imported when a network is built."),
            stand_in="conv-stem",
        ),
        Part(
            kind="head-block",
            summary="a last block, whose output the loss reads",
            example="mean-head",
            suffix="head",
            entry="declared:MeanHead",
            module=("blocks.py", "The blocks, imported when a network is built."),
            stand_in="pool-linear",
        ),
    ),
)
