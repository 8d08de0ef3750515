"""What is asked of losses."""

from __future__ import annotations

from petra_graph.kinds.loss import (
    LOSS,
)
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.kinds.loss_classes import check_ignored, check_right_class, check_sure_mistakes
from petra_graph_conformance.kinds.loss_sums import (
    check_mean,
    check_metrics,
    check_sample_by_sample,
    check_shares,
    check_weights,
)
from petra_graph_conformance.kinds.loss_trial import LossTrial, likely_losses
from petra_graph_conformance.kinds.loss_value import (
    check_bounded,
    check_logits,
    check_loss_construction,
    check_scalar,
    check_untouched,
)
from petra_graph_conformance.outputs_and_targets import (
    OUTPUT_SETTINGS,
)
from petra_graph_conformance.promise import KindChecks, Promise

LOSS_CHECKS = KindChecks(
    kind=LOSS,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("construction", check_loss_construction, foundation=True),
        Promise("scalar", check_scalar, foundation=True),
        Promise("untouched", check_untouched),
        Promise("bounded", check_bounded, doubt=True),
        Promise("logits", check_logits, kit=False, doubt=True),
        Promise("right class", check_right_class),
        Promise("sure mistakes", check_sure_mistakes, doubt=True),
        Promise("ignored targets", check_ignored, doubt=True),
        Promise("weights", check_weights),
        Promise("mean over samples", check_mean),
        Promise("sample by sample", check_sample_by_sample, kit=False, doubt=True),
        Promise("metrics", check_metrics),
        Promise("shares", check_shares),
    ),
    trial=LossTrial,
    trials=likely_losses,
    settings=OUTPUT_SETTINGS,
)
