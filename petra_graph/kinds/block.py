"""A block: a part of a network, reversible or not, as nodes name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from attrs import frozen

from petra_graph.kinds.declaration import Declaration, expect_among
from petra_graph.kinds.plugin_kind import Form, PluginKind
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
)
