"""The command line called on one specification; runs that nothing interrupts; two networks with a cable between them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener


@pytest.fixture
def validate(write, capsys):
    """Validate a specification, and return the exit code and what was printed to stderr."""

    def validate(text: str | None, *arguments: str) -> tuple[int, str]:
        if text is not None:
            write("a.toml", text)
        code = main(["validate", "a.toml", *arguments])
        printed = capsys.readouterr()
        assert printed.out == ""
        return code, printed.err

    return validate


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


@pytest.fixture
def namespaces():
    """Two networks with a cable between them."""
    names = [f"petra{os.getpid()}-{node}" for node in (0, 1)]
    cable = [f"pg{os.getpid()}-{node}" for node in (0, 1)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", names[0])
        ip("netns", "add", names[1])
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for node, (name, end) in enumerate(zip(names, cable, strict=True), start=1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{node}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
        yield dict(zip(names, cable, strict=True))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces need the rights of root, and `ip`")
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
