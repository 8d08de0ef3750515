"""The command line called on one specification."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main


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
