from petra_graph.plugins import GreaterThan, LossDeclaration, declares, option


@declares(LossDeclaration, "petra_graph_examples.loss:WideMargin")
class WideMargin:
    """Multi-class margin loss; counts top-1, and the samples that keep the margin."""

    margin: float = option("by which the right class is to lead all others", default=1.0, validator=GreaterThan(0))
