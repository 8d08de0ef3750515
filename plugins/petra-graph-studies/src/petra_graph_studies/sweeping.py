"""All combinations of some values of a spec, as ordinary runs in one folder, or as plans.

    petra-graph sweep SPEC optimizer.options.lr=0.1,0.03 method.name=petra,backprop --seeds 3 --at-once 2

    runs/NAME-sweep/
        20260131T120001Z-NAME-9c01d2/       the run of a combination, as any other
        lr=0.1,method=petra,seed=0.txt      what its process printed
        spec.toml                           of a specification that was made in code
        report.html                         the comparison

Nothing is noted down of a sweep: a run in the folder is that of a combination if it was resolved to the same specification. So the same
command trains no finished run again, continues those that have a checkpoint, and starts the others; another value adds runs.

Decision: a terminal's Ctrl-C reaches this process alone, which asks each run to stop; a run in a process group of its own hears it once. Where
this process is killed, the system asks the runs to stop (`stop_with_parent`).

Decision: runs at the same time are spread over the GPUs by what their processes see of them, in another order each, so that the first of two
devices is `cuda:0` in every run: of 4 GPUs and 2 runs at a time, 0,1,2,3 and 2,3,0,1.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from attrs import define, evolve, field, frozen

from petra_graph.cli.options_and_output import Json, Option, Sets, echo, import_torch, output_width, print_json
from petra_graph.cli.options_and_output import verb as as_verb
from petra_graph.errors import Interrupted, PetraGraphError, Problem, RunFailed, SpecError, shown
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import RecordedRun, read_run, run_directories
from petra_graph.record.run_directory import is_locked, locked, read_json, write_text
from petra_graph.report.metric_text import chosen_on
from petra_graph.report.run_groups import group_columns, group_runs, in_words
from petra_graph.report.tables import render, tables
from petra_graph.runtime.system import PARENT, stop_requests
from petra_graph.spec.class_names import assignments
from petra_graph.spec.layers import STDIN, parse_override
from petra_graph.spec.load_spec import Given, dump
from petra_graph.spec.model import Spec

if TYPE_CHECKING:
    from petra_graph.api import Run

Table = Mapping[str, Any]
Values = Mapping[str, Sequence[str]]
"""Of each key that is varied, its values as KEY=VALUE."""
PAGE = "report.html"
_SEED = "run.seed"
_LOOK_SECONDS = 0.1
_LAST_LINES = 3
"""Of a process's output, to say why it failed."""


@frozen(kw_only=True)
class Combination:
    """What one run, or one plan, has of the values."""

    words: str
    overrides: tuple[str, ...]


@define(kw_only=True)
class Member:
    """The run of a combination, whether it has begun or not."""

    words: str
    overrides: Sequence[str]
    table: Table
    """The specification that it is resolved to, without name and folder."""
    folder: Path
    """Of the sweep."""
    directory: Path | None = None
    """Of the run, once it has begun."""
    code: int | None = field(default=None, init=False)
    """The exit code of its process, if that has ended here."""

    @property
    def output(self) -> Path:
        return self.folder / (re.sub(r"[^\w.=+-]+", ",", self.words)[:100] + ".txt")

    def find(self) -> Path | None:
        """Look for its run in the folder: the one that is done, or the latest one."""
        found = [one for one in run_directories(self.folder) if _table_of(one) == self.table]
        found.sort(key=lambda one: (status_of(one) == "done", one.name))
        self.directory = found[-1] if found else None
        return self.directory

    @property
    def status(self) -> str:
        """How it stands: "waiting", or as `RecordedRun.status`."""
        return "waiting" if self.directory is None else status_of(self.directory)

    def failure(self) -> str:
        """Return why it ended before it was done: as its summary says, or the last lines that its process printed."""
        summary = {} if self.directory is None else read_json(self.directory / "summary.json", dict) or {}
        if summary.get("error"):
            return str(summary["error"][0]).partition("\n")[0]
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(["it was killed" if self.directory else "it did not begin to train", *lines[-_LAST_LINES:]])


class Sweep:
    """The runs of a sweep, in the order of their combinations."""

    def __init__(self, directory: Path, members: Sequence[Member]) -> None:
        self.directory = directory
        self.members = members

    @property
    def runs(self) -> list[Run]:
        """The runs that have begun."""
        from petra_graph.api import Run

        return [Run(one.directory) for one in self.members if one.directory is not None]

    @property
    def failed(self) -> Mapping[str, str]:
        """Why runs failed or were killed, by what they have of the values: "lr=0.1, seed=0"."""
        return {one.words: one.failure() for one in self.members if one.status in {"failed", "killed"}}

    def table(self, width: int = 120) -> str:
        """Return the mean and the deviation over its seeds of each combination that is done, the best first."""
        return results_table(
            [read_run(one.directory) for one in self.members if one.directory and one.status == "done"], width
        )

    def __repr__(self) -> str:
        statuses = [one.status for one in self.members]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
        return f"{self.table()}\n{len(statuses)} runs: {counts}\nresults: {self.directory}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def sweep(
    spec: Spec | str | Path,
    values: Mapping[str, Sequence[Any]] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    seeds: int | None = None,
    at_once: int = 1,
    processes: int = 1,
) -> Sweep:
    """Train a specification with all combinations of some values, as `petra-graph sweep` does, to the bit.

    Each run is a process of its own. One that fails does not stop the others; `failed` says why. Called again, it trains no finished run again.

    Args:
        spec: or the name of its file.
        values: the values of each key, as in {"optimizer.options.lr": [0.1, 0.03]}.
        changes: values to set in all runs.
        seeds: how many for each combination, from the specification's seed on; None: that one alone.
        at_once: how many runs train at a time.
        processes: how many share the stages of each run.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: before anything is started, with all problems of all combinations.
        RunFailed: the folder cannot be written, or another process carries out the sweep.
    """
    from petra_graph.api.finished_run import threads_as_before
    from petra_graph.api.spec_to_run import given_specification, refuse_classes_of_main

    given = given_specification(spec)
    if isinstance(given, Spec):
        refuse_classes_of_main(given)
    written = {key: [next(iter(assignments({key: one}))) for one in several] for key, several in (values or {}).items()}
    with threads_as_before():
        members = prepare_members(given, list(assignments(changes)), written, seeds, processes)
    carry_out(given, members, at_once, processes)
    return Sweep(members[0].folder, members)


@as_verb("sweep")
def verb(
    spec: Annotated[str, "SPEC"],
    varied: Annotated[tuple[str, ...], "KEY=A,B,..."] = (),
    *,
    overrides: Sets = (),
    seeds: Annotated[
        int | None,
        Option("Train each combination with N seeds, from run.seed on.", "N", least=1),
    ] = None,
    at_once: Annotated[
        int,
        Option(
            "Train N runs at a time, spread over the GPUs here: with 4 of them and N = 2, the second run's cuda:0 is the third GPU.",
            "N",
            least=1,
        ),
    ] = 1,
    processes: Annotated[int, Option("Share the stages of each run among N processes.", "N", least=1)] = 1,
    only_plan: Annotated[
        bool, Option("Print the plans of all combinations, and train nothing.", names=("--plan",))
    ] = False,
    as_json: Json = False,
) -> None:
    """Train SPEC with all combinations of some values, each run in a process of its own, and compare them.

    Write values as for --set; commas inside lists, tables and quotes don't separate values: 'optimizer.options.betas=[0.9,0.99],[0.8,0.99]'. The
    runs are in the folder NAME-sweep of run.directory. Given again, the command trains no finished run again, and continues the others. Ctrl-C
    stops all runs with a checkpoint (exit code 130).
    """
    if not varied and seeds is None:
        raise click.UsageError("Give values, as in optimizer.options.lr=0.1,0.03, or --seeds.")
    values = read_values(varied)
    import_torch()
    if only_plan:
        document = plans_of(spec, overrides, values)
        if as_json:
            print_json(document)
        else:
            from petra_graph.report.plan_text import plan_text

            click.echo(plan_text(document, width=max(60, output_width(80))).rstrip("\n"))
        return
    members = prepare_members(spec, overrides, values, seeds, processes)
    asked = carry_out(spec, members, at_once, processes)
    page = write_comparison(members)
    found = Sweep(members[0].folder, members)
    if as_json:
        record = [{"combination": one.words, "status": one.status, "directory": str(one.directory)} for one in members]
        print_json({"folder": str(found.directory), "runs": record, "report": page})
    else:
        echo(f"{found.table(output_width())}\nresults: {found.directory}")
    if asked:
        raise Interrupted(asked, found.directory)
    if failed := [one for one in members if one.status != "done"]:
        raise RunFailed(
            [Problem(message=f"{one.words}: {one.failure()}", hint=f"its output is in {one.output}") for one in failed]
        )


def read_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each key that KEY=VALUE,VALUE describes; commas in quotes, lists and tables part no values.

    Raises:
        SpecError: a key or a value is missing or is no TOML, or a key stands there twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        key, _, rest = text.partition("=")
        parts, depth, begin = list[str](), 0, 0
        for token in re.finditer(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[\[\]{},]', rest):
            depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
            if token[0] == "," and depth <= 0:
                parts.append(rest[begin : token.start()])
                begin = token.end()
        written = [f"{key}={part.strip()}" for part in [*parts, rest[begin:]]]
        name = ".".join(parse_override(written[0]).keys)
        if name in found:
            raise SpecError(f"{name} is varied twice", "name all of its values at once")
        found[name] = written
    return found


def combine(values: Values, overrides: Sequence[str]) -> list[Combination]:
    """Return all combinations; the last key varies first.

    Raises:
        SpecError: a key is set as well, or has a value twice; or run.directory is varied.
    """
    fixed = {".".join(parse_override(text).keys) for text in overrides}
    for key, texts in values.items():
        read = [parse_override(text).value for text in texts]
        if twice := [one for at, one in enumerate(read) if one in read[:at]]:
            raise SpecError(f"{key} has the value {shown(twice[0])} twice", "leave one of them out")
        if key in fixed:
            raise SpecError(f"{key} is varied, and set as well", "leave one of the two out")
        if key == "run.directory":
            raise SpecError("run.directory cannot be varied", "all runs of a sweep are in one folder")
    chosen = list(product(*values.values()))
    rows = {key: [shown(parse_override(one[at]).value) for one in chosen] for at, key in enumerate(values)}
    names = in_words(rows) if rows else ["as it is"] * len(chosen)
    return [Combination(words=words, overrides=tuple(one)) for words, one in zip(names, chosen, strict=True)]


def plans_of(given: Given, overrides: Sequence[str], values: Values) -> Any:
    """Return the plans of all combinations as a document; one that is refused has a row with the reason."""
    from petra_graph.planning.compare_plans import compare_specs
    from petra_graph.planning.plan_spec import Planner

    return compare_specs(
        {one.words: partial(Planner, given, [*overrides, *one.overrides]) for one in combine(values, overrides)}
    )


def prepare_members(
    given: Given, overrides: Sequence[str], values: Values, seeds: int | None, processes: int
) -> list[Member]:
    """Prepare all combinations as their runs will be, so that whatever a run refuses is refused here; seeds change nothing of that.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: with all problems of all combinations; or two of them are the same run.
    """
    from petra_graph.training.prepare import prepare
    from petra_graph.training.resolved_spec import resolved

    if given == STDIN:
        raise SpecError("a spec from the standard input cannot be read by several processes", "write it to a file")
    combinations = combine({key: texts for key, texts in values.items() if key != _SEED}, overrides)
    specs, errors = list[Spec](), list[PetraGraphError]()
    for one in combinations:
        try:
            specs.append(resolved(prepare(given, [*overrides, *one.overrides], processes)))
        except PetraGraphError as error:
            errors.append(error)
    if errors:
        problems = dict.fromkeys(problem for error in errors for problem in error.problems)
        raise type(errors[0])(problems)
    parent = Path(os.path.expandvars(specs[0].run.directory)).expanduser()
    folder = parent / f"{specs[0].name}-sweep"
    first = specs[0].run.seed
    numbers = [parse_override(text).value for text in values.get(_SEED, ())] or [first]
    if seeds is not None:
        if _SEED in values:
            raise SpecError(f"{_SEED} is varied twice: by its values, and by --seeds", "leave one of them out")
        numbers = [first + place for place in range(seeds)]
    members: list[Member] = []
    for one, spec in zip(combinations, specs, strict=True):
        for seed in numbers:
            table = _comparable(tomllib.loads(dump(evolve(spec, run=evolve(spec.run, seed=seed)))))
            if twin := next((other for other in members if other.table == table), None):
                raise SpecError(f"{twin.words} and {one.words} are the same run", "leave one of them out")
            words = one.words if len(numbers) == 1 else f"{one.words}, seed={seed}" if values else f"seed={seed}"
            texts = [*overrides, *one.overrides, f"{_SEED}={seed}"]
            members.append(Member(words=words, overrides=texts, table=table, folder=folder))
    return members


def _comparable(table: Table) -> Table:
    """Return a resolved specification without its name and folder, which change no number."""
    run = {key: value for key, value in table["run"].items() if key != "directory"}
    return {**{key: value for key, value in table.items() if key != "name"}, "run": run}


def _table_of(directory: Path) -> Table | None:
    try:
        return _comparable(tomllib.loads((directory / "resolved.toml").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError):
        return None


def status_of(directory: Path) -> str:
    if is_locked(directory):
        return "running"
    return str((read_json(directory / "summary.json", dict) or {}).get("status", "killed"))


def carry_out(given: Given, members: Sequence[Member], at_once: int, processes: int) -> str | None:
    """Run what is not done: runs with a checkpoint continue, the others begin. Return the signal that has stopped it, or None.

    Raises:
        RunFailed: the folder cannot be written, or another process carries out this sweep, or trains one of its runs.
    """
    folder = members[0].folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        spec = given if isinstance(given, str) else str(folder / "spec.toml")
        if isinstance(given, Spec):
            write_text(folder / "spec.toml", dump(given))
        for one in members:
            one.find()
        if busy := [one for one in members if one.status == "running"]:
            raise RunFailed(f"another process trains {busy[0].directory}", "wait until it has ended, or stop it")
        waiting = [one for one in members if one.status != "done"]
        echo(f"{len(members)} runs, {len(members) - len(waiting)} of them done: {folder}", err=True)
        return _run_all(members, waiting, spec, at_once, processes)


def _run_all(members: Sequence[Member], waiting: list[Member], spec: str, at_once: int, processes: int) -> str | None:
    """Run those that wait, some at a time; a second Ctrl-C kills what is still running."""
    running: dict[int, tuple[Member, subprocess.Popen[bytes]]] = {}
    """By their place among those at the same time."""
    asked, insists, told = list[str](), list[bool](), False
    with stop_requests(asked.append, lambda: insists.append(True)):
        try:
            while running or (waiting and not asked):
                for place in range(at_once):
                    if waiting and place not in running and not asked:
                        one = waiting.pop(0)
                        running[place] = one, _start(one, spec, place, at_once, processes)
                if asked and (insists or not told):
                    told = True
                    _signal(running, signal.SIGKILL if insists else signal.SIGTERM)
                for place in [place for place, (_, process) in running.items() if process.poll() is not None]:
                    one, process = running.pop(place)
                    one.code = process.returncode
                    one.find()
                    done = sum(each.status == "done" for each in members)
                    echo(f"{done}/{len(members)} done   {_ended_line(one)}", err=True)
                time.sleep(_LOOK_SECONDS)
        finally:
            _signal(running, signal.SIGTERM)
            for _, process in running.values():
                process.wait()
    return asked[0] if asked else None


def _signal(running: Mapping[int, tuple[Member, subprocess.Popen[bytes]]], number: signal.Signals) -> None:
    for _, process in running.values():
        process.send_signal(number)


def _start(member: Member, spec: str, place: int, at_once: int, processes: int) -> subprocess.Popen[bytes]:
    """Start the process of a run, in a group of its own, both of whose streams are written to a file."""
    words = ["run", spec]
    if member.directory is not None and numbers(member.directory):
        words = ["run", "--resume", str(member.directory.absolute())]
    else:
        if member.directory is not None:
            shutil.rmtree(member.directory)  # it has nothing that could be continued
        for text in (*member.overrides, f"run.directory={member.folder.absolute()}"):
            words += ["--set", text]
    words += ["--processes", str(processes)] if processes > 1 else []
    variables = {**os.environ, PARENT: str(os.getpid()), **visible_gpus(place, at_once)}
    with member.output.open("ab") as output:
        return subprocess.Popen(  # noqa: S603  this interpreter, and words that are no shell's
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            [sys.executable, "-P", "-m", "petra_graph", *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def visible_gpus(place: int, at_once: int) -> Mapping[str, str]:
    """Return the variable that says which GPUs a process sees, and in which order; nothing where all runs see one.

    Args:
        place: of the run among those at the same time.
        at_once: how many these are.
    """
    import torch

    many, name = torch.cuda.device_count(), "CUDA_VISIBLE_DEVICES"
    if min(many, at_once) <= 1:
        return {}
    named = os.environ.get(name)
    gpus = named.split(",")[:many] if named else [str(index) for index in range(many)]
    first = place * max(1, many // at_once) % many
    return {name: ",".join([*gpus[first:], *gpus[:first]])}


def _ended_line(member: Member) -> str:
    if member.status == "done" and member.directory is not None:
        best = read_run(member.directory).best
        return f"{member.words}: done" + ("" if best is None else f"   best {best.metric} {best.value:.4g}")
    if member.status == "interrupted" or (member.directory is None and member.code in {-signal.SIGTERM, 130}):
        return f"{member.words}: interrupted"
    return f"{member.words}: failed: {member.failure().splitlines()[-1]}"


def write_comparison(members: Sequence[Member]) -> Any:
    """Write the page of the runs that have begun; return what `petra-graph report --json` prints, or None if none has begun."""
    from petra_graph.report.pages.runs_page import report_runs

    begun = [str(one.directory) for one in members if one.directory is not None]
    try:
        return report_runs(begun, members[0].folder / PAGE) if begun else None
    except SpecError as error:  # a damaged run, which has been named, or no matplotlib
        echo(f"no {PAGE} is written: {error.problems[0].message}", err=True)
        return None


def results_table(runs: Sequence[RecordedRun], width: int) -> str:
    """Write of each group of runs that differ in their seed alone the mean and the deviation, the best first."""
    if not runs:
        return "no run is done\n"
    groups = group_runs(runs)
    text = render(tables(group_columns(groups), width), width=width)
    if (metric := groups[0].judged_by) is None:
        return text
    several = ", mean and standard deviation over the seeds" if len({run.seed for run in runs}) > 1 else ""
    which = "smallest" if groups[0].judged_by_smallest else "largest"
    how = f"The best is first, by {metric}: the {which} value of each run's evaluations{several}; {chosen_on(metric)}."
    return f"{text}\n{how}\n"
