"""What a sweep shows, while it runs and at its end, of runs that were trained elsewhere."""

from __future__ import annotations

import io
import json
import shutil

import pytest
from petra_graph_studies.sweeping.combinations import axes_of_texts, combinations, seed_axis
from petra_graph_studies.sweeping.sweep_folder import Member, Sweep
from petra_graph_studies.sweeping.sweep_progress import SweepProgress, progress_table
from petra_graph_studies.sweeping.sweep_table import count_statuses, sweep_table
from rich.console import ConsoleDimensions

from petra_graph.errors import SpecError
from petra_graph.report.tables import render


@pytest.fixture
def sweep(saved_runs, here):
    """Six runs: two seeds done, one of two done, none begun."""
    chosen = combinations([*axes_of_texts(["optimizer.options.lr=0.3,0.2,0.1"]), seed_axis(1, 2)])
    folder = here / "20260101T000000Z-small-sweep-1"
    folder.mkdir()
    members = tuple(Member(sweep=folder, combination=one, identity="x") for one in chosen)
    made = Sweep(
        folder=folder,
        spec="small.toml",
        working_directory=str(here),
        overrides=(),
        processes=1,
        max_restarts=0,
        at_once=2,
        members=members,
    )
    made.write()
    for member, name in zip((members[0], members[2], members[3]), ("first", "first", "second"), strict=True):
        shutil.copytree(saved_runs[name], member.folder / saved_runs[name].name)
    return Sweep.read(folder)


def record(member, name, value):
    """Make a value the only one of a run's metric."""
    path = member.directory / "metrics.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [event for event in events if event["name"] != name]
    event = {"time": 0, "epoch": 2, "step": 22, "name": name, "value": value}
    path.write_text("".join(f"{json.dumps(one)}\n" for one in [*kept, event]))


def test_the_validation_chooses_and_the_test_is_beside_it(sweep):
    for place, validated, tested in ((0, 0.9, 0.1), (2, 0.6, 0.7), (3, 0.6, 0.7)):
        resolved = sweep.members[place].directory / "resolved.toml"
        resolved.write_text(resolved.read_text().replace("[data]\n", "[data]\nvalidation = 0.1\n"))
        record(sweep.members[place], "validation/top1", validated)
        record(sweep.members[place], "test/top1", tested)
    text = sweep_table(sweep, 160)
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["lr=0.3", "lr=0.2", "lr=0.1"]
    assert "best validation/top1" in lines[0]
    assert "final test/top1" in lines[0]
    assert "chosen on the validation samples" in " ".join(text.split())


def test_a_best_that_the_test_data_chose_is_said(sweep):
    assert "chosen on the test set, so new samples will do worse: set data.validation." in " ".join(
        sweep_table(sweep, 120).split()
    )


def test_the_best_is_first_with_its_spread(sweep):
    for place, value in ((0, 0.5), (2, 0.6), (3, 0.8)):
        record(sweep.members[place], "test/top1", value)
    lines = sweep_table(sweep, 120).splitlines()
    assert lines[0].split()[:4] == ["combination", "runs", "best", "test/top1"]
    assert [line.split()[0] for line in lines[2:5]] == ["lr=0.2", "lr=0.3", "lr=0.1"]
    assert lines[2].split()[1:5] == ["2", "70.00", "±", "14.14"]
    assert lines[3].split()[1:6] == ["1", "of", "2", "50.00", "%"]
    assert lines[4].split()[1:4] == ["0", "of", "2"]
    assert "The best is first, by test/top1: the largest value" in "\n".join(lines)
    assert "chosen on the test set" in "\n".join(lines)
    assert max(map(len, sweep_table(sweep, 80).splitlines())) <= 80


def test_where_the_smallest_value_is_best(sweep):
    for member in sweep.members:
        if member.directory is not None:
            path = member.directory / "metrics.jsonl"
            path.write_text(
                "".join(line for line in path.read_text().splitlines(keepends=True) if "test/top1" not in line)
            )
    for place, value in ((0, 0.1), (2, 0.2), (3, 0.3)):
        record(sweep.members[place], "test/loss", value)
    text = sweep_table(sweep, 200)
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["lr=0.3", "lr=0.2", "lr=0.1"]
    assert "by test/loss: the smallest value" in text


def test_what_a_terminal_shows_meanwhile(sweep):
    running = [sweep.members[4].folder]
    rows = render(
        [progress_table(sweep.members, running, ConsoleDimensions(80, 24))], width=80, colour=False
    ).splitlines()
    assert [row.split()[2] for row in rows[2:8]] == ["done", "waiting", "done", "done", "starting", "waiting"]
    assert rows[-1] == "6 runs: 3 done, 1 running, 2 waiting"
    few = render(
        [progress_table(sweep.members, running, ConsoleDimensions(80, 7))], width=80, colour=False
    ).splitlines()
    assert [row.split(",")[0] for row in few[2:4]] == ["lr=0.3", "lr=0.1"], "what runs is shown before all others"
    assert few[-1].endswith("… 4 more")


def test_a_line_for_each_run_that_has_ended(sweep):
    said = io.StringIO()
    two = [sweep.members[place].directory / "summary.json" for place in (0, 2)]
    texts = [path.read_text() for path in two]
    for path in two:
        path.unlink()
    progress = SweepProgress(sweep, said)
    for path, text in zip(two, texts, strict=True):  # both end before either is told
        path.write_text(text)
    for place in (0, 2):
        progress.ended(sweep.members[place], 0)
    (sweep.members[1].output).write_text("one\ntwo\nno memory\n")
    progress.ended(sweep.members[1], 1)
    progress.ended(sweep.members[1], 130)
    first, second, third, fourth = said.getvalue().splitlines()
    assert first.startswith("2/6 done   lr=0.3, seed=1: done   best test/top1 ")
    assert second.startswith("3/6 done   lr=0.2, seed=1: done")
    assert fourth == "3/6 done   lr=0.3, seed=2: interrupted before it began to train"
    assert third == "3/6 done   lr=0.3, seed=2: failed: no memory"


def test_counts():
    assert count_statuses(["done", "waiting", "done"]) == "3 runs: 2 done, 1 waiting"


def test_a_sweep_is_read_as_it_was_written(sweep):
    assert Sweep.read(sweep.folder) == sweep
    words = sweep.words(sweep.members[1])
    assert words[:6] == ["run", "small.toml", "--set", "optimizer.options.lr=0.3", "--set", "run.seed=2"]
    assert words[-1] == f"run.directory={sweep.members[1].folder}"


def test_a_sweep_that_is_damaged_or_none(sweep, here):
    with pytest.raises(SpecError, match="is not the folder of a sweep"):
        Sweep.read(here)
    (sweep.folder / "sweep.json").write_text('{"spec": "small.toml"}')
    with pytest.raises(SpecError, match=r"sweep\.json is damaged: .*working_directory"):
        Sweep.read(sweep.folder)
