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
        Promise("construction", check_optimizer_construction, before_run=True, foundation=True),
        Promise("every parameter", check_every_parameter, before_run=True),
        Promise("learning rate", check_learning_rate, before_run=True),
        Promise("descends", check_descends, before_run=True),
        Promise("later steps", check_later_steps, before_run=True, doubt=True),
        Promise("decay", check_decay, before_run=True, doubt=True),
        Promise("options", check_options, before_run=True, doubt=True),
        Promise("repeatable", check_same_steps, before_run=True),
        Promise("state dictionary", check_optimizer_state_dict, before_run=True),
        Promise("checkpoint", check_checkpoint, before_run=True),
        Promise("evaluated weights", check_evaluated_weights, before_run=True),
        Promise("predicted weights", check_predicted_weights, before_run=True),
        Promise("earlier weights", check_earlier_weights, before_run=True),
    ),
    trial=OptimizerTrial,
)
