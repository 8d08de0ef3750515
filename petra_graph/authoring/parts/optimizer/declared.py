from attrs import frozen
from petra_graph.plugins import AtLeast, OptimizerDeclaration, option


@frozen(kw_only=True)
class SignDescentOptions:
    """The learning rate, and the decay of weights."""

    lr: float = option("base learning rate", default=0.01, validator=AtLeast(0))
    weight_decay: float = option(
        "share of a weight that a step of rate 1 takes away", default=0.0, validator=AtLeast(0)
    )


SIGN_DESCENT = OptimizerDeclaration(
    summary="Steps of the gradient's sign.",
    options=SignDescentOptions,
    build="petra_graph_examples.optimizer:sign_descent",
    api=1,
)
