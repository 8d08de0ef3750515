"""The conformance kit: checks that a plugin of any kind keeps the promises on which training relies.

A plugin's own tests need one call, which raises an AssertionError that lists every broken promise, by how much, and what to do:

    check_block(MyBlock, inputs=[(8, 6, 6), (8, 6, 6)], options={...})
    check_optimizer(my_optimizer, {"lr": 0.1})

A plugin is given as an entry point names it: its code, the class of its options, or its declaration.

| kind | all promises | a trial |
|---|---|---|
| block | `check_block` | `Trial.of(block, inputs, options)`; `draw=Tokens(50_000)` where it reads tokens |
| architecture | `check_architecture` | `ArchitectureTrial.of(plugin, options, facts=...)` |
| optimizer | `check_optimizer` | `OptimizerTrial.of(plugin, options)` |
| learning-rate schedule | `check_lr_schedule` | `LrScheduleTrial.of(plugin, options)` |
| loss | `check_loss` | `LossTrial.of(plugin, options, output=..., targets=...)`, as in `targets=last_classes_of` |
| metric | `check_metric` | `MetricTrial.of(plugin, options, output=..., targets=...)` |
| data set | `check_dataset` | `DataSetTrial.of(plugin, options)` |
| logger | `check_logger` | `LoggerTrial.of(plugin, options)` |
| callback | `check_callback` | `CallbackTrial.of(plugin, options)` |

`@parametrize_with_checks(*trials, expected_failed_checks={name: reason})` makes a pytest test of each promise.
`examine(trial)` returns a `Report`, with an `Outcome` for each promise. `PROMISES` has the promises of every kind by name; those
of a block are functions of their own, too (`check_inverse(Trial.of(...))`). `petra-graph check` does the same without pytest.
"""

from petra_graph.kinds.broken_promise import BrokenPromise as BrokenPromise
from petra_graph.kinds.callback import CallbackTrial as CallbackTrial
from petra_graph.kinds.data_set import DataSetTrial as DataSetTrial
from petra_graph.kinds.declaration_promises import check_imports_no_torch as check_imports_no_torch
from petra_graph.kinds.examined_promises import PROMISES as PROMISES
from petra_graph.kinds.examined_promises import examine as examine
from petra_graph.kinds.examined_promises import promises_of as promises_of
from petra_graph.kinds.logger import LoggerTrial as LoggerTrial
from petra_graph.kinds.loss import LossTrial as LossTrial
from petra_graph.kinds.lr_schedule import LrScheduleTrial as LrScheduleTrial
from petra_graph.kinds.metric import MetricTrial as MetricTrial
from petra_graph.kinds.optimizer import OptimizerTrial as OptimizerTrial
from petra_graph.kinds.outputs_and_targets import binary_like as binary_like
from petra_graph.kinds.outputs_and_targets import classes_of as classes_of
from petra_graph.kinds.outputs_and_targets import last_classes_of as last_classes_of
from petra_graph.kinds.outputs_and_targets import numbers_of as numbers_of
from petra_graph.kinds.outputs_and_targets import values_like as values_like
from petra_graph.kinds.promise_report import BrokenPromises as BrokenPromises
from petra_graph.kinds.promise_report import Outcome as Outcome
from petra_graph.kinds.promise_report import Report as Report
from petra_graph.promises.alike_blocks import check_construction as check_construction
from petra_graph.promises.architecture_promises import ArchitectureTrial as ArchitectureTrial
from petra_graph.promises.block_declaration import check_declaration as check_declaration
from petra_graph.promises.block_trial import Tokens as Tokens
from petra_graph.promises.block_trial import Trial as Trial
from petra_graph.promises.inverse_and_gradients import check_autocast as check_autocast
from petra_graph.promises.inverse_and_gradients import check_gradients as check_gradients
from petra_graph.promises.inverse_and_gradients import check_inverse as check_inverse
from petra_graph.promises.inverse_and_gradients import check_one_evaluation as check_one_evaluation
from petra_graph.promises.learned_and_running_state import check_state_dict as check_state_dict
from petra_graph.promises.learned_and_running_state import check_statistics as check_statistics
from petra_graph.promises.repeatable_evaluation import check_evaluation_mode as check_evaluation_mode
from petra_graph.promises.repeatable_evaluation import check_randomness as check_randomness
from petra_graph.promises.repeatable_evaluation import check_recomputation as check_recomputation
from petra_graph.promises.shapes_and_streams import check_meta_device as check_meta_device
from petra_graph.promises.shapes_and_streams import check_shapes as check_shapes
from petra_graph.promises.shapes_and_streams import check_streams_untouched as check_streams_untouched
from petra_graph.testing.check_each_kind import check_architecture as check_architecture
from petra_graph.testing.check_each_kind import check_block as check_block
from petra_graph.testing.check_each_kind import check_callback as check_callback
from petra_graph.testing.check_each_kind import check_dataset as check_dataset
from petra_graph.testing.check_each_kind import check_logger as check_logger
from petra_graph.testing.check_each_kind import check_loss as check_loss
from petra_graph.testing.check_each_kind import check_lr_schedule as check_lr_schedule
from petra_graph.testing.check_each_kind import check_metric as check_metric
from petra_graph.testing.check_each_kind import check_optimizer as check_optimizer
from petra_graph.testing.parametrize import parametrize_with_checks as parametrize_with_checks
