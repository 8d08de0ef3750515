"""An architecture: a network by name, written out as nodes for the samples that it is given, without torch."""

from __future__ import annotations

from typing import Any, cast

from attrs import frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin import Plugin, load
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.spec.model import NodeSpec


@frozen(kw_only=True)
class ArchitectureDeclaration(Declaration):
    """A network by name; `build` names a torch-free function (options, DataFacts) -> tuple of NodeSpec.

    It may raise `SpecError` with problems, whose paths count from its own options.

    Attributes:
        several_inputs: whether its first node reads samples of several inputs; if not, it is not called with their facts.
    """

    several_inputs: bool = False


def expand(plugin: Plugin, options: Any, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of an architecture with these options, for a data set's samples; its code does not import torch.

    Raises:
        SpecError: its options or the data do not make a network; paths count from the `options` table.
        PluginError: the architecture cannot be loaded, failed, or returned something other than nodes.
    """
    build = load(plugin)
    if facts.several_inputs and not cast(ArchitectureDeclaration, plugin.declaration).several_inputs:
        names = ", ".join(facts.inputs)
        message = f"{plugin} reads one tensor a sample, and a sample of the data has several inputs: {names}"
        hint = f"write the network as [[graph.node]] tables, of which the first has a block with forward(self, {names})"
        raise SpecError(Problem(message=message, hint=hint))
    with author_code(f"{plugin.owned} cannot be written out as nodes"):
        made = tuple(build(options, facts))
    if not made or not all(isinstance(node, NodeSpec) for node in made):
        raise plugin.broken("its build returns something else than a tuple of NodeSpec")
    return made


ARCHITECTURE = PluginKind(
    noun="architecture",
    group="petra_graph.architectures",
    table="architecture",
    declaration=ArchitectureDeclaration,
    form=called("options, facts", "tuple of NodeSpec"),
)
