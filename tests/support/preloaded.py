"""What every process of a run imports: `tests.support.forks` has it imported once, and forks."""

import os

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

import torch

import petra_graph.cli.main
import petra_graph.cli.run
import petra_graph.report.progress
import petra_graph.training.processes.one_of_several  # noqa: F401

torch.set_num_threads(1)
