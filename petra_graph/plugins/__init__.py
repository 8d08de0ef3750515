"""All that options and declarations of plugins need, without torch: `from petra_graph.plugins import declares, option`.

A package registers plugins as entry points, each by its code or by the class of its options: `declares` says what they are the options
of, and where the code is, which is imported when the plugin is used. The declaration follows from either, or is written out.

| entry-point group | declaration | the code |
|---|---|---|
| `petra_graph.blocks` | `BlockDeclaration` | a class: `cls(inputs, options)`, a `petra_graph.blocks.Block` |
| `petra_graph.architectures` | `ArchitectureDeclaration` | `(options, DataFacts) -> tuple of NodeSpec`, without torch |
| `petra_graph.optimizers` | `OptimizerDeclaration` | `(ParameterGroups, options) -> torch.optim.Optimizer` |
| `petra_graph.lr_schedules` | `LrScheduleDeclaration` | `(options, Horizon) -> factor(u)`, without torch |
| `petra_graph.losses` | `LossDeclaration` | `(options) -> Loss` |
| `petra_graph.metrics` | `MetricDeclaration` | `(options) -> Metric` |
| `petra_graph.datasets` | `DataSetDeclaration` | `(options) -> DataSet` |
| `petra_graph.loggers` | `LoggerDeclaration` | `(options, RunInfo) -> Logger` |
| `petra_graph.callbacks` | `CallbackDeclaration` | `(options) -> Callback` |

The code of an optimizer or a learning-rate schedule may have a third parameter, `stage`: it is then given the `StageFacts` of its stage,
which know its delay.

A `NodeSpec` is a `[[graph.node]]` table of a specification: name, block, kind, inputs, repeat and options.

Options are a frozen, keyword-only attrs class whose fields are made by `option`, with the bounds `AtLeast`, `AtMost`,
`GreaterThan`, `LessThan`, `Length`, `OneOf` and `Each`; `NoOptions` is the class of a plugin without options. A function that
refuses its options or data raises `SpecError`, with a `Problem` whose path counts from the `options` table.

Base classes of blocks are in `petra_graph.blocks`, which imports torch. `petra_graph.testing` and
`petra-graph check` check what training relies on. The guide begins with plugins/README.md in the repository.
"""

from petra_graph.errors import Problem as Problem
from petra_graph.errors import SpecError as SpecError
from petra_graph.plugins.author_code import named_code as named_code
from petra_graph.plugins.callback import Callback as Callback
from petra_graph.plugins.callback import CallbackDeclaration as CallbackDeclaration
from petra_graph.plugins.callback import Companion as Companion
from petra_graph.plugins.callback import EpochEnded as EpochEnded
from petra_graph.plugins.callback import Logger as Logger
from petra_graph.plugins.callback import LoggerDeclaration as LoggerDeclaration
from petra_graph.plugins.callback import RunInfo as RunInfo
from petra_graph.plugins.callback import Started as Started
from petra_graph.plugins.contract import API_VERSION as API_VERSION
from petra_graph.plugins.contract import Declaration as Declaration
from petra_graph.plugins.contract import NoOptions as NoOptions
from petra_graph.plugins.contract import declares as declares
from petra_graph.plugins.contract import option as option
from petra_graph.plugins.data_set import DataFacts as DataFacts
from petra_graph.plugins.data_set import DataSet as DataSet
from petra_graph.plugins.data_set import DataSetDeclaration as DataSetDeclaration
from petra_graph.plugins.data_set import Split as Split
from petra_graph.plugins.data_set import TextCodec as TextCodec
from petra_graph.plugins.generators import fork_generators as fork_generators
from petra_graph.plugins.generators import seed_generators as seed_generators
from petra_graph.plugins.generators import seeded as seeded
from petra_graph.plugins.kinds import ArchitectureDeclaration as ArchitectureDeclaration
from petra_graph.plugins.kinds import BlockDeclaration as BlockDeclaration
from petra_graph.plugins.kinds import LrScheduleDeclaration as LrScheduleDeclaration
from petra_graph.plugins.loss_and_metric import Loss as Loss
from petra_graph.plugins.loss_and_metric import LossDeclaration as LossDeclaration
from petra_graph.plugins.loss_and_metric import Metric as Metric
from petra_graph.plugins.loss_and_metric import MetricDeclaration as MetricDeclaration
from petra_graph.plugins.loss_and_metric import Scale as Scale
from petra_graph.plugins.loss_and_metric import scale_of as scale_of
from petra_graph.plugins.optimizer import BuildOptimizer as BuildOptimizer
from petra_graph.plugins.optimizer import OptimizerDeclaration as OptimizerDeclaration
from petra_graph.plugins.optimizer import ParameterGroups as ParameterGroups
from petra_graph.plugins.stage_facts import Horizon as Horizon
from petra_graph.plugins.stage_facts import StageFacts as StageFacts
from petra_graph.spec.class_names import code_name as code_name
from petra_graph.spec.keys import AtLeast as AtLeast
from petra_graph.spec.keys import AtMost as AtMost
from petra_graph.spec.keys import Bound as Bound
from petra_graph.spec.keys import Each as Each
from petra_graph.spec.keys import GreaterThan as GreaterThan
from petra_graph.spec.keys import Length as Length
from petra_graph.spec.keys import LessThan as LessThan
from petra_graph.spec.keys import OneOf as OneOf
from petra_graph.spec.model import Kind as Kind
from petra_graph.spec.model import NodeSpec as NodeSpec
