from petra_graph.plugins import AtLeast, OptimizerDeclaration, declares, option


@declares(OptimizerDeclaration, "petra_graph_examples.optimizer:sign_descent")
class SignDescent:
    """Steps of the gradient's sign."""

    lr: float = option("base learning rate", default=0.01, validator=AtLeast(0))
    weight_decay: float = option(
        "share of a weight that a step of rate 1 takes away", default=0.0, validator=AtLeast(0)
    )
