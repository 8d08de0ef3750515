"""What all tests share: one thread, as in the specifications' default; folders, and distributions that are not there."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from contextlib import chdir, contextmanager
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from petra_graph.runtime.system import REQUESTS
from tests.support import ROOT, SERVER

# Whoever started the tests may ignore signals, and processes inherit that; a handler is theirs no more, and does as little.
for number in REQUESTS:
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
# Processes that tests start find this checkout's package, whatever folder they start in.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# A worker of xdist has a width of 80, which what is written into a pipe has not.
os.environ.pop("COLUMNS", None)
# The user's own cache is neither read nor written to.
_CACHE = tempfile.TemporaryDirectory(prefix="petra-graph-cache-")
os.environ.setdefault("PETRA_GRAPH_CACHE", _CACHE.name)
settings.register_profile("usual", deadline=None, derandomize=True, print_blob=True, max_examples=15)
settings.register_profile("quick", settings.get_profile("usual"), max_examples=5)
settings.load_profile("usual")
# Examples follow from the test alone: hypothesis would also draw constants of every module that is imported by then, after parsing them all.
providers.is_local_module_file = lambda _: False


def pytest_configure(config):
    """Let one server fork for all workers of xdist: to import and train once takes it ten seconds of a core."""
    if getattr(config.option, "numprocesses", None) and "not processes" not in config.option.markexpr:
        forkserver.set_forkserver_preload(["tests.support.preloaded"])
        with chdir(ROOT):
            forkserver.ensure_running()
        os.environ[SERVER] = vars(forkserver)["_forkserver"]._forkserver_address


def pytest_collection_modifyitems(items):
    """Begin with the files that have a slow test, so that none of them is left for one process at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Let the collector of garbage leave alone what imports and collection made: it would visit all that for each test anew."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute with one thread. Torch is imported here: the process that hands tests to others needs none."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def forgotten_afterwards(folder: Path):
    """Forget modules that were imported from a folder: a test in the same process may have others of their names."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder of its own, from which blocks may be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with forgotten_afterwards(tmp_path):
        yield tmp_path


@pytest.fixture
def write(here):
    """Write a text file into the current folder and return its name."""

    def write_file(name: str, text: str) -> str:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).removeprefix("\n"))
        return name

    return write_file


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on Python's path that stands for an environment; its modules are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    with forgotten_afterwards(folder):
        yield folder


@pytest.fixture
def install(site):
    """Put a distribution into `site`: its name, the text of its entry points, and its modules' texts."""

    def install_distribution(name: str, entry_points: str, **modules: str) -> Path:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(dedent(entry_points))
        for module, text in modules.items():
            (site / f"{module}.py").write_text(dedent(text))
        return info

    return install_distribution


@pytest.fixture
def shared_folder(here):
    """A folder with a specification for several processes, in which runs leave nothing but their directory."""
    from tests.support.forks import ENDLESS, at_work_in, start_server, until

    start_server()
    (here / "shared.toml").write_text(ENDLESS)
    yield here
    until(lambda: not at_work_in(here))  # Python's tracker of resources ends a moment after its owner
    assert not list(here.rglob("*.partial"))


@pytest.fixture(scope="session")
def saved_runs(tmp_path_factory):
    """The directories of small runs that nothing changes: two that differ in their seed alone, and one with a probe; each has a plan."""
    from petra_graph.planning.place_network import SavedPlan
    from petra_graph.planning.plan_spec import Planner
    from petra_graph.plugins.callback import Listener
    from petra_graph.training.run import run
    from tests.support.runs import SPEC

    folder = tmp_path_factory.mktemp("saved")
    (folder / "small.toml").write_text(SPEC)

    @cache
    def planned(*overrides: str) -> SavedPlan:
        return SavedPlan(Planner(str(folder / "small.toml"), overrides).plan(with_timeline=True), "a plan")

    def train(*overrides: str, schedule: str = "1f1b") -> Path:
        scheduled = f"method.schedule={schedule}"
        changes = [f"run.directory={folder}/runs", *overrides, scheduled]
        ended = run(str(folder / "small.toml"), changes, Listener(), saved=planned(scheduled))
        return Path(ended.summary["directory"])

    return {
        "first": train("run.seed=1"),
        "second": train("run.seed=2"),
        "probed": train(
            "callback=[{name='probe', options={per_epoch=2}}]", "name=probed", "run.log_every=1", schedule="lockstep"
        ),
    }


@pytest.fixture
def saved_run(saved_runs, tmp_path):
    """A copy of a run's directory, to be damaged."""
    return Path(shutil.copytree(saved_runs["first"], tmp_path / saved_runs["first"].name))
