"""Whatever a run has: begun by two processes, killed and resumed in one, it ends as the run that nothing interrupts in one process.

Weights, averages, events, losses and metrics are compared, to the bit. A feature's own tests say what it computes.
"""

import signal
import tomllib
from collections.abc import Mapping

import pytest
from attrs import field, frozen

from petra_graph.cli.main import main
from petra_graph.plugins.contract import KINDS
from tests.promises import test_delay_aware as delays
from tests.promises import test_evaluation as evaluation
from tests.promises import test_own_data as own
from tests.promises import test_several_tensors as several
from tests.support import ROOT
from tests.support.forks import ended, ranks, start_server
from tests.support.pages import Page, files_of
from tests.support.runs import SPEC, named, only_run, overrides, result_of, summary_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]
KILL = """\
import glob
import os
import signal
import time
from petra_graph.plugins import Callback

class Kill(Callback):
    def trained(self, epoch, micro_batches, means):
        if (epoch, micro_batches) == (2, 2) and not os.path.exists("killed"):
            while not glob.glob("runs/*/checkpoints/*"):  # written beside the training
                time.sleep(0.01)
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
"""
CALLED = '\n[[callback]]\nname = "kill_once:Kill"\n'


@frozen
class Feature:
    spec: str
    settings: tuple[str, ...] = ()
    files: Mapping[str, str] = field(factory=dict)
    every: str = "1 update"
    """Between checkpoints."""


def in_files() -> dict[str, str]:
    """Return the module and the spec of the guide's package, with names of code in place of those of entry points."""
    files = files_of(Page(ROOT / "plugins" / "guide" / "package.md"))
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    module, spec = files["petra_graph_examples.py"], files["example.toml"]
    for name, target in [item for points in groups.values() for item in points.items()]:
        module, spec = (text.replace(f'"{name}"', f'"{target}"') for text in (module, spec))
    assert {kind.table for kind in KINDS if kind.table} <= tomllib.loads(spec).keys()
    return {"petra_graph_examples.py": module, "example.toml": spec}


LOADED = "data.workers=1"
LOCAL = in_files()
FEATURES = {
    "dropout, a schedule, a loader, validation and its best weights, metrics, values everywhere, an average": Feature(
        SPEC + named("metric", "perplexity") + named("callback", "tensorboard", "ema"),
        ("lr_schedule.name=cosine", LOADED, "data.validation=0.1", "checkpoint.best=validation/top1"),
    ),
    "what nodes keep, weights that are evaluated and not trained": Feature(
        evaluation.FREE,
        ("method.name=1f1b-flush", 'method.keep={"stem"="input", "rev.0"="nothing"}'),
        {"local_free.py": evaluation.MODULE},
    ),
    "older parameters, in few bits, an optimizer with matrices": Feature(
        SPEC,
        (
            "method.name=pipedream",
            "precision={ channel_dtype = 'int8', buffer_dtype = 'bfloat16' }",
            "optimizer={ name = 'muon', options = { lr = 0.01 } }",
        ),
    ),
    "old graphs and new weights, an optimizer that knows its delay, from the end of an epoch": Feature(
        delays.TEXT, ("method.name=paci",), {"delayed.py": delays.MODULE}, every="1 epoch"
    ),
    "plugins of every kind in a file": Feature(
        LOCAL["example.toml"],
        ("data.options.samples=80",),
        {"petra_graph_examples.py": LOCAL["petra_graph_examples.py"]},
    ),
    "several inputs": Feature(
        several.SHOWN["two_inputs.toml"], (LOADED,), {"two_inputs.py": several.SHOWN["two_inputs.py"]}
    ),
    "several outputs and targets": Feature(several.SPEC.replace("every = ", "keep = 4\nevery = ")),
    "modules and data of one's own": Feature(own.SPEC, (LOADED,), {"own.py": own.MODULE}),
    "a stream of samples": Feature(own.FILES["rows.toml"], (LOADED, "run.epochs=3"), own.FILES),
}


@pytest.mark.parametrize("name", FEATURES)
def test_two_processes_that_are_killed_and_resumed_in_one(here, write, name):
    start_server()
    feature = FEATURES[name]
    for file, text in {**feature.files, "kill_once.py": KILL, "feature.toml": feature.spec + CALLED}.items():
        write(file, text)
    words = ["run", "feature.toml"]
    words += overrides("run.epochs=2", f'checkpoint.every="{feature.every}"', *feature.settings)
    with ranks(words, words) as running:
        assert sorted(ended(running)) == [-signal.SIGKILL, 1], "".join(one.said for one in running)
    assert main(["run", "--resume", "latest"]) == 0
    assert main([*words, *overrides("run.directory=whole", 'checkpoint.every="1 epoch"')]) == 0
    assert result_of(only_run()) == result_of(only_run("whole"))
    assert summary_of(only_run())["resumed_from"]
