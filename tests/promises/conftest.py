"""A small specification, and runs that nothing interrupts."""

from pathlib import Path

import pytest

from petra_graph.plugins.callback import Listener
from tests.support.runs import SPEC


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """The directory of a run in this process that nothing interrupts: trained once, and nothing may change it."""
    from petra_graph.training.run import run

    trained: dict[tuple[str, ...], Path] = {}

    def directory(text: str, *settings: str) -> Path:
        if (text, *settings) not in trained:
            folder = tmp_path_factory.mktemp("whole")
            (folder / "whole.toml").write_text(text)
            ended = run(str(folder / "whole.toml"), [*settings, f"run.directory={folder}"], Listener())
            trained[text, *settings] = Path(ended.summary["directory"])
        return trained[text, *settings]

    return directory
