"""What every process of a run imports: `tests.support.forks` has it imported once, and forks.

A fork that has to import these itself takes three times the processor time of a small run.
"""

import gc
import os
from importlib import import_module

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
for name in (
    "torch",
    "torch._dynamo",  # which optimizers of others import, and what draws within `torch.device`
    "torch.fx.experimental.symbolic_shapes",  # with sympy, for shapes on the meta device
    "torch.nested._internal.nested_tensor",
    "torch.utils.flop_counter",  # with triton
    "torch.utils.tensorboard",
    "petra_graph.catalog.callbacks",
    "petra_graph.cli.spec_verbs",
    "petra_graph.training.process",
    "petra_graph.training.run",
):
    import_module(name)

import_module("torch").set_num_threads(1)


def train_once() -> None:
    """Plan and train: what torch and the package make at their first use, as tables of operators, is there for all forks.

    Not where torch sees a GPU, whose threads no fork would have.
    """
    import io
    from contextlib import redirect_stderr, redirect_stdout
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import torch

    from petra_graph.cli.main import main
    from tests.support.forks import SPEC

    if torch.cuda.is_available():
        return
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        spec = Path(folder, "shared.toml")
        spec.write_text(SPEC)
        assert main(["plan", str(spec)]) == 0
        assert main(["run", str(spec), "--set", "run.epochs=1", "--set", f"run.directory={folder}"]) == 0


train_once()
gc.collect()
gc.freeze()
