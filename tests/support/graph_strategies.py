"""Random networks: chains with skips and branches, in any declared order; and where they may be cut."""

from hypothesis import strategies as st

from petra_graph.graph.node_graph import NodeGraph
from petra_graph.spec.model import Kind, NodeSpec
from tests.support.pipelines import CLASSES, node

FEATURES = 3


@st.composite
def networks(draw: st.DrawFn, max_body: int = 6) -> tuple[NodeSpec, ...]:
    """Nodes of a graph that keeps every rule: a stem, reversible and merging nodes, and a head that reads every end.

    Reversible blocks may stand as buffered nodes. Every stream has FEATURES features.
    """
    nodes = [node("stem", "linear-stem", features=FEATURES)]
    ends = {"stem"}
    for index in range(draw(st.integers(0, max_body))):
        known = [table.name for table in nodes]
        readable = st.sampled_from(known)
        if draw(st.booleans()):
            kinds: list[Kind] = ["reversible", "reversible", "buffered"]
            kind = draw(st.sampled_from(kinds))
            inputs = [draw(readable)]
            made = node(f"n{index}", "rev-mlp", kind=kind, inputs=inputs, hidden=2, activation="tanh")
        else:
            inputs = draw(st.lists(readable, min_size=1, max_size=3, unique=True))
            made = node(f"n{index}", "add", inputs=inputs)
        nodes.append(made)
        ends = (ends - set(inputs)) | {made.name}
    nodes[0] = node("stem", "linear-stem", inputs=["input"], features=FEATURES)
    head = node("head", "pool-linear", inputs=sorted(ends), outputs=CLASSES)
    return (*draw(st.permutations(nodes)), head)


@st.composite
def cuts(draw: st.DrawFn, graph: NodeGraph) -> tuple[tuple[str, ...], ...]:
    """Stages of `graph` that form an acyclic graph: some topological order, cut into runs."""
    order: list[str] = []
    waiting = set(graph.nodes)
    while waiting:
        free = sorted(name for name in waiting if not set(graph.digraph.predecessors(name)) & waiting)
        order.append(draw(st.sampled_from(free)))
        waiting.discard(order[-1])
    ends = [index + 1 for index in range(len(order) - 1) if draw(st.booleans())]
    return tuple(tuple(order[first:last]) for first, last in zip([0, *ends], [*ends, len(order)], strict=True))
