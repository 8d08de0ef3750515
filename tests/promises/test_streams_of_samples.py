"""A training stream of unknown length: how long its epochs are, and what is no such stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.forks import alone, ended
from tests.support.pages import Page, files_of
from tests.support.runs import only_run, summary_of

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "data_sets.md"))
RUN = ("run", "rows.toml")


@pytest.fixture
def folder(here, write):
    """The page's example, with files of 150 and of 20 rows."""
    for name in ("rows.py", "rows.toml"):
        write(name, SHOWN[name])
    rows = [f"{x:.3f},{y:.3f},{int(x * y > 0)}\n" for x, y in np.random.default_rng(0).normal(size=(170, 2))]
    write("train.csv", "".join(rows[:150]))
    write("test.csv", "".join(rows[150:]))
    return here


def test_epochs_are_as_long_as_the_specification_says_and_the_stream_begins_again(folder):
    assert main([*RUN]) == 0
    summary = summary_of(only_run())
    assert (summary["epochs"], summary["micro_batches"]) == (3, 3 * 7)
    assert summary["warnings"] == ["the training stream ended after 150 samples, and began again"]  # 168 are read


@pytest.mark.processes
def test_a_stream_of_which_each_rank_has_rows_of_its_own_is_refused(folder):
    """As loaders for data parallelism do: labels were those of other rows than the first stage had read."""
    own = "[torch.distributed.is_initialized() and torch.distributed.get_rank() :: 1 + torch.distributed.is_initialized()]"
    text = SHOWN["rows.py"].replace("import torch\n", "import torch\nimport torch.distributed\n", 1)
    Path("rows.py").write_text(text.replace("for line in lines:", f"for line in list(lines){own}:"))
    with alone(*RUN, "--set", "partition.stages=2", "--processes", "2", ranks_fork=True) as running:
        assert ended([running]) == [1], running.said
    assert "the training stream begins with another sample in this process than on its own" in running.said


@pytest.mark.parametrize(
    ("old", "new", "code", "reason"),
    [
        ("micro_batches = 7\n", "", 2, "set run.micro_batches, the number of micro-batches of an epoch"),
        ("batch = 8\n", "batch = 8\nworkers = 2\n", 2, "by one loader process at most (got 2)"),
        ("batch = 8\n", "batch = 151\n", 1, "the training stream has 150 samples in pass 0, and a micro-batch has 151"),
        ("rows:test", "rows:train", 2, "rows:train is Rows, not a map-style Dataset"),
    ],
)
def test_what_cannot_be_read_as_a_stream(folder, capsys, old, new, code, reason):  # noqa: PLR0917
    text = SHOWN["rows.toml"]
    assert old in text
    Path("rows.toml").write_text(text.replace(old, new))
    assert main([*RUN]) == code
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,2,3,0\n", "is float32 [3], and that of training sample 0 is float32 [2]"),
        ("1,2,x\n", "of pass 0 of the training stream: ValueError: invalid literal for int() with base 10: 'x"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_in_the_training(folder, capsys, row, reason):
    rows = Path("train.csv").read_text().splitlines(keepends=True)
    Path("train.csv").write_text("".join([*rows[:120], row, *rows[120:]]))
    assert main([*RUN]) == 1
    said = capsys.readouterr().err
    assert reason in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("random.randrange(32)", "next(NUMBERS)", "another first sample when it is iterated again"),
        ('train = Rows("train.csv")', 'train = iter(Rows("train.csv"))', "the stream has another first sample"),
    ],
)
def test_a_stream_that_does_not_begin_anew_is_refused(folder, capsys, old, new, reason):
    assert old in SHOWN["rows.py"]
    text = SHOWN["rows.py"].replace(old, new)
    Path("rows.py").write_text(f"import itertools\n\nNUMBERS = itertools.cycle(range(31))\n{text}")
    assert main([*RUN]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "rows.toml:21:" in said
