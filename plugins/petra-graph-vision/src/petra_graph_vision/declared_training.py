"""The optimizer and the metrics of this package, as declarations: this imports no torch."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from petra_graph.plugins import (
    AtLeast,
    AtMost,
    GreaterThan,
    LessThan,
    MetricDeclaration,
    OptimizerDeclaration,
    declares,
    option,
)


@declares(OptimizerDeclaration, "petra_graph_vision.lars:lars")
class LarsOptions:
    """Momentum with a learning rate for each tensor, in proportion to its norm, for large batches.

    Each decayed tensor's step is in proportion to its own norm.
    """

    lr: float = option(
        "base learning rate; schedule and scaling multiply it", default=1.0, validator=[AtLeast(0), AtMost(1e30)]
    )
    momentum: float = option("share of the last step that is kept", default=0.9, validator=[AtLeast(0), LessThan(1)])
    trust: float = option(
        "the paper's eta: the length of a step as a share of the tensor's norm", default=0.001, validator=GreaterThan(0)
    )
    weight_decay: float = option(
        "weight decay, none on normalisation and biases", default=0.0, validator=[AtLeast(0), AtMost(1e30)]
    )


@frozen(kw_only=True)
class F1Options:
    """The average over the classes."""

    average: Literal["macro", "micro", "weighted"] = option(
        "mean over the classes; of all samples as one class; or mean weighted by the classes' samples", default="macro"
    )


F1 = MetricDeclaration(
    summary="F1 score of the predicted classes; a class that is neither a target nor predicted does not count.",
    options=F1Options,
    build="petra_graph_vision.metrics:F1",
    share=True,
)
MEAN_IOU = MetricDeclaration(
    summary="Mean over the classes of intersection over union, as of pixels; a class that is neither a target nor predicted does not count.",
    build="petra_graph_vision.metrics:MeanIou",
    share=True,
)
AUC = MetricDeclaration(
    summary="Area under the ROC curve, each class against the rest, mean over the classes that divide the targets; keeps all outputs on the CPU.",
    build="petra_graph_vision.metrics:Auc",
    share=True,
)
