"""The conformance kit: checks that a block keeps the promises on which training relies.

A block's own tests need one call, `check_block(MyBlock, inputs=[(8, 6, 6), (8, 6, 6)], options={...})`; each promise
is a function of its own as well, which takes a `Trial`.
"""

from petra_graph.testing.backward import check_autocast, check_gradients, check_inverse, check_one_evaluation
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.conformance import PROMISES, check_block, promises_of
from petra_graph.testing.declarations import check_declaration, check_imports_no_torch
from petra_graph.testing.evaluation import check_evaluation_mode, check_randomness, check_recomputation
from petra_graph.testing.state import check_state_dict, check_statistics
from petra_graph.testing.streams import check_meta_device, check_shapes, check_streams_untouched
from petra_graph.testing.trial import Trial

__all__ = [
    "PROMISES",
    "BrokenPromise",
    "Trial",
    "check_autocast",
    "check_block",
    "check_declaration",
    "check_evaluation_mode",
    "check_gradients",
    "check_imports_no_torch",
    "check_inverse",
    "check_meta_device",
    "check_one_evaluation",
    "check_randomness",
    "check_recomputation",
    "check_shapes",
    "check_state_dict",
    "check_statistics",
    "check_streams_untouched",
    "promises_of",
]
