"""The losses that come with the package, as declarations."""

from __future__ import annotations

from petra_graph.plugins import AtLeast, LessThan, LossDeclaration, declares, option


@declares(LossDeclaration, "petra_graph.catalog.losses.functions:CrossEntropy", logits=True)
class CrossEntropyOptions:
    """Mean cross-entropy of logits against class indices; counts top-1 and, of more than five classes, top-5."""

    label_smoothing: float = option(
        "share of the target that is spread evenly over all classes", default=0.0, validator=[AtLeast(0), LessThan(1)]
    )


MEAN_SQUARED_ERROR = LossDeclaration(
    summary="Mean squared error against targets of the output's shape, or against class indices as one-hot vectors.",
    build="petra_graph.catalog.losses.functions:MeanSquaredError",
)
