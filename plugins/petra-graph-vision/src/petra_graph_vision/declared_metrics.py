"""The metrics of this package, as declarations: this imports no torch."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from petra_graph.plugins import MetricDeclaration, option


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
