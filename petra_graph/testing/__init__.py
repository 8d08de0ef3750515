"""The conformance kit: checks that a plugin of any kind keeps the promises on which training relies.

A plugin's own tests need one call, `check_block(MyBlock, inputs=[(8, 6, 6), (8, 6, 6)], options={...})`, which raises an
AssertionError that lists every broken promise, by how much, and what to do; or one decorator,
`@parametrize_with_checks(Trial.of(MyBlock, inputs=...))`, for a test a promise.
"""

from petra_graph.testing.backward import check_autocast as check_autocast
from petra_graph.testing.backward import check_gradients as check_gradients
from petra_graph.testing.backward import check_inverse as check_inverse
from petra_graph.testing.backward import check_one_evaluation as check_one_evaluation
from petra_graph.testing.block_promises import check_block as check_block
from petra_graph.testing.broken_promise import BrokenPromise as BrokenPromise
from petra_graph.testing.conformance import PROMISES as PROMISES
from petra_graph.testing.conformance import examine as examine
from petra_graph.testing.conformance import promises_of as promises_of
from petra_graph.testing.construction import check_construction as check_construction
from petra_graph.testing.declarations import check_declaration as check_declaration
from petra_graph.testing.declarations import check_imports_no_torch as check_imports_no_torch
from petra_graph.testing.evaluation import check_evaluation_mode as check_evaluation_mode
from petra_graph.testing.evaluation import check_randomness as check_randomness
from petra_graph.testing.evaluation import check_recomputation as check_recomputation
from petra_graph.testing.parametrize import parametrize_with_checks as parametrize_with_checks
from petra_graph.testing.report import BrokenPromises as BrokenPromises
from petra_graph.testing.report import Outcome as Outcome
from petra_graph.testing.report import Report as Report
from petra_graph.testing.state import check_state_dict as check_state_dict
from petra_graph.testing.state import check_statistics as check_statistics
from petra_graph.testing.streams import check_meta_device as check_meta_device
from petra_graph.testing.streams import check_shapes as check_shapes
from petra_graph.testing.streams import check_streams_untouched as check_streams_untouched
from petra_graph.testing.trial import Trial as Trial
