from attrs import frozen
from petra_graph.plugins import AtLeast, MetricDeclaration, option


@frozen(kw_only=True)
class WorstClassOptions:
    """The classes that count."""

    least: int = option("samples that a class needs to count", default=1, validator=AtLeast(1))


WORST_CLASS = MetricDeclaration(
    summary="Share of right answers in the class that has the smallest such share.",
    options=WorstClassOptions,
    build="petra_graph_examples.metric:WorstClass",
    better="higher",
    share=True,
    api=1,
)
