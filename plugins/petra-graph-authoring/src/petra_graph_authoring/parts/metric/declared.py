from petra_graph.plugins import AtLeast, MetricDeclaration, declares, option


@declares(MetricDeclaration, "petra_graph_examples.metric:WorstClass", share=True)
class WorstClass:
    """Share of right answers in the class that has the smallest such share."""

    least: int = option("samples that a class needs to count", default=1, validator=AtLeast(1))
