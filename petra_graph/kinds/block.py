"""A block: a part of a network, reversible or not, as nodes name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import field, frozen

from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin_kind import Form, PluginKind
from petra_graph.spec.bounds import OneOf
from petra_graph.spec.model import Kind


@frozen(kw_only=True)
class BlockDeclaration(Declaration):
    """A block; `build` names a `petra_graph.blocks.Block` subclass, built as `cls(inputs, options)`.

    Attributes:
        kind: the most that the block can be: a reversible block may also be a buffered node.
        streams: the number of tensors that the block reads; None: any number.
    """

    kind: Literal["reversible", "buffered", "head"] = field(validator=OneOf(*get_args(Kind)))
    streams: int | None = None

    @property
    def abilities(self) -> tuple[str, ...]:
        streams = "any number of" if self.streams is None else str(self.streams)
        return (self.kind, f"reads {streams} stream{'s' * (self.streams != 1)}")


def _declared(block: Any, _: str) -> Mapping[str, Any]:
    return {"kind": block.kind, "streams": getattr(block, "streams", None)}


BLOCK = PluginKind(
    noun="block",
    group="petra_graph.blocks",
    declaration=BlockDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and hasattr(value, "kind"),
        otherwise='is not a subclass of a class of petra_graph.blocks; any other torch.nn.Module is an option of the block "module"',
        declared=_declared,
    ),
)
