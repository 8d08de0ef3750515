"""All kinds of plugins."""

from __future__ import annotations

from petra_graph.kinds.architecture import ARCHITECTURE
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.callback import CALLBACK
from petra_graph.kinds.data_set import DATA_SET
from petra_graph.kinds.logger import LOGGER
from petra_graph.kinds.loss import LOSS
from petra_graph.kinds.lr_schedule import LR_SCHEDULE
from petra_graph.kinds.metric import METRIC
from petra_graph.kinds.optimizer import OPTIMIZER

KINDS = (BLOCK, ARCHITECTURE, OPTIMIZER, LR_SCHEDULE, LOSS, METRIC, DATA_SET, LOGGER, CALLBACK)
"""In the order of lists and of the guide."""
