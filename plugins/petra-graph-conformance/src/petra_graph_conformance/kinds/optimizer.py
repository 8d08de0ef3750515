"""What is asked of optimizers."""

from __future__ import annotations

from petra_graph.kinds.optimizer import (
    OPTIMIZER,
)
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.kinds.optimizer_options import check_decay, check_later_steps, check_options
from petra_graph_conformance.kinds.optimizer_state import (
    check_checkpoint,
    check_earlier_weights,
    check_evaluated_weights,
    check_optimizer_state_dict,
    check_predicted_weights,
)
from petra_graph_conformance.kinds.optimizer_steps import (
    check_descends,
    check_every_parameter,
    check_learning_rate,
    check_optimizer_construction,
    check_same_steps,
)
from petra_graph_conformance.kinds.optimizer_trial import OptimizerTrial
from petra_graph_conformance.promise import KindChecks, Promise

OPTIMIZER_CHECKS = KindChecks(
    kind=OPTIMIZER,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("construction", check_optimizer_construction, foundation=True),
        Promise("every parameter", check_every_parameter),
        Promise("learning rate", check_learning_rate),
        Promise("descends", check_descends),
        Promise("later steps", check_later_steps, doubt=True),
        Promise("decay", check_decay, doubt=True),
        Promise("options", check_options, doubt=True),
        Promise("repeatable", check_same_steps),
        Promise("state dictionary", check_optimizer_state_dict),
        Promise("checkpoint", check_checkpoint),
        Promise("evaluated weights", check_evaluated_weights),
        Promise("predicted weights", check_predicted_weights),
        Promise("earlier weights", check_earlier_weights),
    ),
    trial=OptimizerTrial,
)
