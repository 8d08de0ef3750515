from attrs import frozen
from petra_graph.plugins import GreaterThan, LossDeclaration, option


@frozen(kw_only=True)
class WideMarginOptions:
    """The margin."""

    margin: float = option("by which the right class is to lead all others", default=1.0, validator=GreaterThan(0))


WIDE_MARGIN = LossDeclaration(
    summary="Multi-class margin loss; counts top-1, and the samples that keep the margin.",
    options=WideMarginOptions,
    build="petra_graph_examples.loss:WideMargin",
    api=1,
)
