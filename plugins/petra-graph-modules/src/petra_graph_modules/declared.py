"""The blocks, the architecture and the callback as declarations; the module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from petra_graph.plugins import (
    ArchitectureDeclaration,
    AtLeast,
    BlockDeclaration,
    CallbackDeclaration,
    DataFacts,
    GreaterThan,
    Kind,
    NodeSpec,
    declares,
    option,
)


@frozen(kw_only=True)
class ModuleOptions:
    """What makes the module: a class or a function, as code."""

    module: str = option(
        'class or function that makes the module, as "torch.nn:Conv2d" or "my_file:make_layer"', is_code=True
    )
    kwargs: Mapping[str, Any] = option("arguments that it is called with, by name", default={})


@frozen(kw_only=True)
class ModulePartOptions:
    """A whole network, and which part of it the node is. The architecture "module" writes these options."""

    build: str = option('class or function that makes the network, as in "my_file:make_model"', is_code=True)
    kwargs: Mapping[str, Any] = option("arguments that it is called with, by name", default={})
    nodes: tuple[str, ...] = option("modules that have a node each, by name or pattern", default=())
    shape: tuple[int, ...] | Mapping[str, tuple[int, ...]] = option(
        "shape of a sample that the network reads; of several inputs, each by its name"
    )
    tokens: bool | tuple[str, ...] = option(
        "whether samples are integers, such as tokens; of several inputs, the names of those that are", default=False
    )
    node: str = option("name of the part")


@frozen(kw_only=True)
class ModuleNetworkOptions:
    """What makes the network, and which of its modules are nodes."""

    build: str = option('class or function that makes the network, as in "my_file:make_model"', is_code=True)
    kwargs: Mapping[str, Any] = option("arguments that it is called with, by name", default={})
    nodes: tuple[str, ...] = option(
        'modules that have a node each, by name or pattern, as in ["layers.*", "head"]; default: those of the longest lists, and others '
        "with weights",
        default=(),
    )


def module_nodes(options: ModuleNetworkOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of any torch.nn.Module, which is built and run on samples without values.

    Raises:
        SpecError: it cannot be cut; the message names the line.
    """
    from petra_graph_modules.part_blocks import cut_module  # which imports torch

    whole = {key: value for key, value in asdict(options).items() if value} | {"shape": facts.shape}
    tokens = tuple(name for name, (_, dtype) in facts.inputs.items() if dtype == "int64")
    if tokens:
        whole["tokens"] = tokens if facts.several_inputs else True
    parts = list(cut_module(ModulePartOptions(**whole, node="")).parts.values())
    made = []
    for index, part in enumerate(parts):
        chained = index == 0 or part.sources == (index - 1,)
        made.append(
            NodeSpec(
                name=part.name,
                block="module-part" if index < len(parts) - 1 else "module-part-head",
                inputs=None if chained else tuple(parts[source].name for source in part.sources),
                options={**whole, "node": part.name},
            )
        )
    return tuple(made)


def _block(kind: Kind, code: str, options: type, summary: str) -> BlockDeclaration:
    return BlockDeclaration(
        kind=kind, streams=None, build=f"petra_graph_modules.{code}", options=options, summary=summary
    )


MODULE = _block(
    "buffered", "module_blocks:Module", ModuleOptions, "Any torch.nn.Module of streams: tensors in, one or several out."
)
MODULE_HEAD = _block(
    "head", "module_blocks:ModuleHead", ModuleOptions, "Any torch.nn.Module as the head: tensors in, the output out."
)
MODULE_PART = _block(
    "buffered",
    "part_blocks:ModulePart",
    ModulePartOptions,
    'A part of a network that the architecture "module" cuts.',
)
MODULE_PART_HEAD = _block(
    "head",
    "part_blocks:ModulePartHead",
    ModulePartOptions,
    'The last part of a network that the architecture "module" cuts.',
)
NETWORK = ArchitectureDeclaration(
    summary="Any torch.nn.Module, cut into buffered nodes.",
    options=ModuleNetworkOptions,
    build=f"{__name__}:module_nodes",
    several_inputs=True,
)


@declares(
    CallbackDeclaration,
    "petra_graph_modules.dual_residual_schedule:DualResidualSchedule",
    changes="weights",
)
class DualResidualScheduleOptions:
    """Moves alpha and beta of dual residual blocks linearly, from their first values to others."""

    alpha: float = option("value of alpha at the end", default=0.3)
    beta: float = option("value of beta at the end", default=0.7, validator=GreaterThan(0))
    updates: int = option(
        "updates of a stage over which they move; they stay afterwards", default=1000, validator=AtLeast(1)
    )
