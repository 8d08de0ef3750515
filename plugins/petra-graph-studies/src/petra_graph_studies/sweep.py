"""The verb `sweep`: all combinations of some values of a spec, as ordinary runs in one folder, or as plans.

petra-graph sweep SPEC optimizer.options.lr=0.1,0.03 method.name=petra,backprop --seeds 3 --at-once 2

runs/NAME-sweep/
    20260131T120001Z-NAME-9c01d2/       the run of a combination, as any other
    lr=0.1,method=petra,seed=0.txt      what its process printed
    report.html                         the comparison

Nothing is noted down of a sweep: a run in the folder is that of a combination if it was resolved to the same specification. So the same
command trains no finished run again, continues those that have a checkpoint, and starts the others; another value adds runs.

Decision: a terminal's Ctrl-C reaches this process alone, which asks each run to stop; a run in a process group of its own hears it once. Where
this process is killed, the system asks the runs to stop (`stop_with_parent`).
"""

from __future__ import annotations

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
from typing import Annotated, Any

import click
from attrs import define, evolve

from petra_graph.cli.options_and_output import Answer, Option, Sets, echo, print_problems
from petra_graph.cli.options_and_output import verb as as_verb
from petra_graph.errors import Interrupted, PetraGraphError, Problem, RunFailed, SpecError, shown
from petra_graph.record.checkpoint import numbers
from petra_graph.record.run_directory import SUMMARY, locked, read_json, read_run, run_directories, status_of
from petra_graph.report.run_groups import group_columns, group_runs, in_words, judged_by
from petra_graph.report.tables import table_lines
from petra_graph.runtime.system import PARENT, stop_requests
from petra_graph.spec.load_spec import STDIN, dump, parse_override
from petra_graph.spec.model import Spec

PAGE = "report.html"
_SEED = "run.seed"
_LOOK_SECONDS = 0.1
_LAST_LINES = 3
"""Of a process's output, to say why it failed."""
Table = Mapping[str, Any]


@as_verb("sweep")
def verb(
    spec: Annotated[str, "SPEC"],
    varied: Annotated[tuple[str, ...], "KEY=A,B,..."] = (),
    *,
    overrides: Sets = (),
    seeds: Annotated[int | None, Option("Train each combination with N seeds, from run.seed on.", "N", least=1)] = None,
    at_once: Annotated[int, Option("Train N runs at a time, which begin at different GPUs.", "N", least=1)] = 1,
    processes: Annotated[int, Option("Share the stages of each run among N processes.", "N", least=1)] = 1,
    only_plan: Annotated[bool, Option("Print the plans of all, and train nothing.", names=("--plan",))] = False,
) -> Answer:
    """Train SPEC with all combinations of some values, each run in a process of its own, and compare them.

    Write values as for --set; commas inside lists, tables and quotes don't separate values: 'optimizer.options.betas=[0.9,0.99],[0.8,0.99]'. The
    runs are in the folder NAME-sweep of run.directory. Given again, the command trains no finished run again, and continues the others. Ctrl-C
    stops all runs with a checkpoint (exit code 130).
    """
    if not varied and seeds is None:
        raise click.UsageError("Give values, as in optimizer.options.lr=0.1,0.03, or --seeds.")
    values = read_values(varied, overrides)
    if only_plan:
        from petra_graph.planning.compare_plans import compare_specs
        from petra_graph.planning.plan_spec import Planner
        from petra_graph.report.plan_text import plan_text

        # One that is refused has a row with the reason.
        combinations = combine(values).items()
        compared = compare_specs({words: partial(Planner, spec, [*overrides, *own]) for words, own in combinations})
        return Answer(compared.as_json(), plan_text(compared))
    members = prepare_members(spec, overrides, values, seeds, processes)
    asked = carry_out(spec, members, at_once, processes)
    folder, begun = members[0].folder, [one.directory for one in members if one.directory is not None]
    from petra_graph.report.pages.runs_page import report_runs

    page = None
    try:
        page = report_runs(list(map(str, begun)), folder / PAGE) if begun else None
    except SpecError as error:  # a damaged run, which has been named, or no matplotlib
        echo(f"no {PAGE} is written: {error.problems[0].message}", err=True)
    # The groups of runs that differ in their seed alone, the best first, as the page has them.
    done = [read_run(one.directory) for one in members if one.directory and one.status == "done"]
    lines = ["no run is done"]
    if done:
        groups = group_runs(done)
        lines = [*table_lines(group_columns(groups)), "", judged_by(groups)]
    failed = [one for one in members if one.status != "done"]
    if not asked:
        print_problems(
            [Problem(message=f"{one.words}: {one.failure()}", hint=f"its output is in {one.output}") for one in failed]
        )
    code = Interrupted.exit_code if asked else RunFailed.exit_code if failed else 0
    runs = [{"combination": one.words, "status": one.status, "directory": str(one.directory)} for one in members]
    record = {"folder": str(folder), "runs": runs, "report": page}
    return Answer(record, "\n".join([*lines, "", f"results: {folder}"]), code)


def read_values(texts: Sequence[str], overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the values of each key that KEY=VALUE,VALUE describes, as KEY=VALUE; commas in quotes, lists and tables part no values.

    Raises SpecError: a key or a value is missing or is no TOML, or a key cannot be varied.
    """
    found: dict[str, list[str]] = {}
    fixed = {".".join(parse_override(text).keys) for text in overrides}
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
        if name in fixed:
            raise SpecError(f"{name} is varied, and set as well", "leave one of the two out")
        if name == "run.directory":
            raise SpecError("run.directory cannot be varied", "all runs of a sweep are in one folder")
        found[name] = written
    return found


def combine(values: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return all combinations, as KEY=VALUE by what is said of them; the last key varies first."""
    chosen = list(product(*values.values()))
    rows = {key: [shown(parse_override(one[at]).value) for one in chosen] for at, key in enumerate(values)}
    return dict(zip(in_words(rows) if rows else ["as it is"], chosen, strict=True))


def prepare_members(
    spec: str, overrides: Sequence[str], values: Mapping[str, Sequence[str]], seeds: int | None, processes: int
) -> list[Member]:
    """Prepare all combinations as their runs will be, so that whatever a run refuses is refused here; seeds change nothing of that.

    Raises SpecError, PluginError, NoFeasiblePlan: with all problems of all combinations; or two of them are the same run.
    """
    from petra_graph.training.identity import resolved
    from petra_graph.training.prepare import prepare

    if spec == STDIN:
        raise SpecError("a spec from the standard input cannot be read by several processes", "write it to a file")
    combinations = combine({key: texts for key, texts in values.items() if key != _SEED})
    specs, errors = dict[str, Spec](), list[PetraGraphError]()
    for words, own in combinations.items():
        try:
            specs[words] = resolved(prepare(spec, [*overrides, *own], processes))
        except PetraGraphError as error:
            errors.append(error)
    if errors:
        raise type(errors[0])(dict.fromkeys(problem for error in errors for problem in error.problems))
    first = next(iter(specs.values()))
    folder = Path(os.path.expandvars(first.run.directory)).expanduser() / f"{first.name}-sweep"
    numbers = [parse_override(text).value for text in values.get(_SEED, ())] or [first.run.seed]
    if seeds is not None:
        if _SEED in values:
            raise SpecError(f"{_SEED} is varied twice: by its values, and by --seeds", "leave one of them out")
        numbers = [first.run.seed + place for place in range(seeds)]
    members: list[Member] = []
    for (words, combined), seed in product(specs.items(), numbers):
        table = comparable(tomllib.loads(dump(evolve(combined, run=evolve(combined.run, seed=seed)))))
        if twin := next((other for other in members if other.table == table), None):
            raise SpecError(f"{twin.words} and {words} are the same run", "leave one of them out")
        said = words if len(numbers) == 1 else f"{words}, seed={seed}" if values else f"seed={seed}"
        texts = [*overrides, *combinations[words], f"{_SEED}={seed}"]
        members.append(Member(words=said, overrides=texts, table=table, folder=folder))
    return members


# --- the runs ----------------------------------------------------------------------------------------------------------


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

    @property
    def output(self) -> Path:
        return self.folder / (re.sub(r"[^\w.=+-]+", ",", self.words)[:100] + ".txt")

    def find(self) -> None:
        """Look for its run in the folder: the one that is done, or the latest one."""
        found = [one for one in run_directories(self.folder) if _table_of(one) == self.table]
        self.directory = max(found, key=lambda one: (status_of(one) == "done", one.name), default=None)

    @property
    def status(self) -> str:
        """How it stands: "waiting", or as `RecordedRun.status`."""
        return "waiting" if self.directory is None else status_of(self.directory)

    def ended(self, code: int) -> str:
        """Say how its process has ended, with this exit code."""
        if self.directory is not None and self.status == "done":
            best = read_run(self.directory).best
            return "done" + ("" if best is None else f"   best {best.metric} {best.value:.4g}")
        if self.status == "interrupted" or (self.directory is None and code in {-signal.SIGTERM, 130}):
            return "interrupted"
        return f"failed: {self.failure().splitlines()[-1]}"

    def failure(self) -> str:
        """Return why it ended before it was done: as its summary says, or the last lines that its process printed."""
        summary = {} if self.directory is None else read_json(self.directory / SUMMARY)
        if summary.get("error"):
            return str(summary["error"][0]).partition("\n")[0]
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(["it was killed" if self.directory else "it did not begin to train", *lines[-_LAST_LINES:]])


def comparable(table: Table) -> Table:
    """Return a resolved specification without its name and folder, which change no number."""
    run = {key: value for key, value in table["run"].items() if key != "directory"}
    return {**{key: value for key, value in table.items() if key != "name"}, "run": run}


def _table_of(directory: Path) -> Table | None:
    try:
        return comparable(tomllib.loads((directory / "resolved.toml").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError):
        return None


def carry_out(spec: str, members: Sequence[Member], at_once: int, processes: int) -> str | None:  # noqa: C901  one loop
    """Run what is not done, some at a time: runs with a checkpoint continue, the others begin. Return the signal that has stopped it, or None.

    A second signal kills what is still running.

    Raises RunFailed: the folder cannot be written, or another process carries out this sweep, or trains one of its runs.
    """
    folder, asked, insists, told = members[0].folder, list[str](), list[bool](), False
    running: dict[int, tuple[Member, subprocess.Popen[bytes]]] = {}
    """By their place among those at the same time."""

    def send(number: signal.Signals) -> None:
        for _, process in running.values():
            process.send_signal(number)

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), stop_requests(asked.append, lambda: insists.append(True)):
        for one in members:
            one.find()
        if busy := [one for one in members if one.status == "running"]:
            raise RunFailed(f"another process trains {busy[0].directory}", "wait until it has ended, or stop it")
        waiting = [one for one in members if one.status != "done"]
        echo(f"{len(members)} runs, {len(members) - len(waiting)} of them done: {folder}", err=True)
        try:
            while running or (waiting and not asked):
                for place in range(at_once):
                    if waiting and place not in running and not asked:
                        one = waiting.pop(0)
                        running[place] = one, _start(one, spec, place, at_once, processes)
                if asked and (insists or not told):
                    told = True
                    send(signal.SIGKILL if insists else signal.SIGTERM)
                for place in [place for place, (_, process) in running.items() if process.poll() is not None]:
                    one, process = running.pop(place)
                    one.find()
                    done = sum(each.status == "done" for each in members)
                    echo(f"{done}/{len(members)} done   {one.words}: {one.ended(process.returncode)}", err=True)
                time.sleep(_LOOK_SECONDS)
        finally:
            send(signal.SIGTERM)
            for _, process in running.values():
                process.wait()
    return asked[0] if asked else None


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
    """Return the variable that says which GPUs the run at a place sees, and in which order; nothing where all runs see one."""
    import torch

    many, name = torch.cuda.device_count(), "CUDA_VISIBLE_DEVICES"
    if min(many, at_once) <= 1:
        return {}
    named = os.environ.get(name)
    gpus = named.split(",")[:many] if named else [str(index) for index in range(many)]
    first = place * max(1, many // at_once) % many
    return {name: ",".join([*gpus[first:], *gpus[:first]])}
