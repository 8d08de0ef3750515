"""The losses that come with the package, as declarations."""

from __future__ import annotations

from attrs import frozen

from petra_graph.plugins import AtLeast, LessThan, LossDeclaration, option


@frozen(kw_only=True)
class CrossEntropyOptions:
    """The smoothing of the targets."""

    label_smoothing: float = option(
        "share of the target that is spread evenly over all classes", default=0.0, validator=[AtLeast(0), LessThan(1)]
    )


CROSS_ENTROPY = LossDeclaration(
    summary="Mean cross-entropy of logits against class indices; counts top-1 and top-5.",
    options=CrossEntropyOptions,
    build="petra_graph.catalog.losses.functions:CrossEntropy",
)
MEAN_SQUARED_ERROR = LossDeclaration(
    summary="Mean squared error against targets of the output's shape, or against class indices as one-hot vectors.",
    build="petra_graph.catalog.losses.functions:MeanSquaredError",
)
