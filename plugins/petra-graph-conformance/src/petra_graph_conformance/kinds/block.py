"""What is asked of blocks.

Where several are broken, the first explains the others.

Decision: their promises are checked in the executor's own runners, so that the kit accepts exactly the blocks that training accepts.
"""

from __future__ import annotations

from petra_graph.kinds.block import BLOCK
from petra_graph_conformance.blocks.alike_blocks import check_construction, check_same_block
from petra_graph_conformance.blocks.block_declaration import check_declaration
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.blocks.finite_differences import check_derivative
from petra_graph_conformance.blocks.inverse_and_gradients import (
    check_autocast,
    check_every_gradient,
    check_gradients,
    check_inverse,
    check_one_evaluation,
)
from petra_graph_conformance.blocks.learned_and_running_state import check_state_dict, check_statistics
from petra_graph_conformance.blocks.likely_blocks import likely_blocks
from petra_graph_conformance.blocks.parameters_and_precision import check_parameters, check_precision, check_types
from petra_graph_conformance.blocks.repeatable_evaluation import (
    check_evaluation_mode,
    check_randomness,
    check_recomputation,
)
from petra_graph_conformance.blocks.shapes_and_streams import check_meta_device, check_shapes, check_streams_untouched
from petra_graph_conformance.declaration_promises import PACKAGE
from petra_graph_conformance.promise import KindChecks, Promise

BLOCK_CHECKS = KindChecks(
    kind=BLOCK,
    promises=(
        Promise("declaration", check_declaration, foundation=True),
        PACKAGE,
        Promise("construction", check_construction, foundation=True),
        Promise("shapes", check_shapes, foundation=True),
        Promise("streams untouched", check_streams_untouched),
        Promise("parameters", check_parameters),
        Promise("randomness", check_randomness),
        Promise("recomputation", check_recomputation),
        Promise("same block", check_same_block),
        Promise("inverse", check_inverse, applies=lambda trial: trial.is_reversible),
        Promise("one evaluation", check_one_evaluation, doubt=True, applies=lambda trial: trial.has_residuals),
        Promise("gradients", check_gradients),
        Promise("derivative", check_derivative, doubt=True),
        Promise("every parameter", check_every_gradient, doubt=True),
        Promise("precision", check_precision, doubt=True),
        Promise("types", check_types, doubt=True, applies=lambda trial: trial.compute != "float64"),
        Promise("statistics", check_statistics),
        Promise("autocast", check_autocast),
        Promise("evaluation mode", check_evaluation_mode),
        Promise("state dictionary", check_state_dict),
        Promise("meta device", check_meta_device, run=False),
    ),
    trial=Trial,
    trials=likely_blocks,
    settings={"inputs": "8x6x6,8x6x6", "tokens": "50000"},
)
