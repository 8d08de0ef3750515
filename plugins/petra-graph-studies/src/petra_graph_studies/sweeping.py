"""All combinations of some values of a spec, as ordinary runs in one folder, or as plans.

petra-graph sweep SPEC optimizer.options.lr=0.1,0.03 method.name=petra,backprop --seeds 3 --at-once 2

runs/NAME-sweep/
    20260131T120001Z-NAME-9c01d2/       the run of a combination, as any other
    lr=0.1,method=petra,seed=0.txt      what its process printed
    report.html                         the comparison
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import click
from attrs import evolve

from petra_graph.cli.options_and_output import Json, Option, Sets, echo, import_torch, output_width, print_json
from petra_graph.cli.options_and_output import verb as as_verb
from petra_graph.errors import Interrupted, PetraGraphError, Problem, RunFailed, SpecError, shown
from petra_graph.record.recorded_run import RecordedRun, read_run
from petra_graph.report.run_groups import group_columns, group_runs, in_words
from petra_graph.report.tables import table_lines
from petra_graph.spec.layers import STDIN, parse_override
from petra_graph.spec.load_spec import dump
from petra_graph.spec.model import Spec
from petra_graph_studies.sweep_runs import Member, carry_out, comparable

Values = Mapping[str, Sequence[str]]
"""Of each key that is varied, its values as KEY=VALUE."""
PAGE = "report.html"
_SEED = "run.seed"


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
        _print_plans(spec, overrides, values, as_json=as_json)
        return
    members = prepare_members(spec, overrides, values, seeds, processes)
    asked = carry_out(spec, members, at_once, processes)
    page, folder = _write_comparison(members), members[0].folder
    if as_json:
        record = [{"combination": one.words, "status": one.status, "directory": str(one.directory)} for one in members]
        print_json({"folder": str(folder), "runs": record, "report": page})
    else:
        done = [read_run(one.directory) for one in members if one.directory and one.status == "done"]
        echo(f"{results_table(done, output_width())}\nresults: {folder}")
    if asked:
        raise Interrupted(asked)
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


def combine(values: Values, overrides: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return all combinations, as KEY=VALUE by what is said of them; the last key varies first.

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
    return dict(zip(in_words(rows) if rows else ["as it is"], chosen, strict=True))


def _print_plans(spec: str, overrides: Sequence[str], values: Values, *, as_json: bool) -> None:
    """Print the plans of all combinations; one that is refused has a row with the reason."""
    from petra_graph.planning.compare_plans import compare_specs
    from petra_graph.planning.plan_spec import Planner
    from petra_graph.report.plan_text import plan_text

    combinations = combine(values, overrides).items()
    planners = {words: partial(Planner, spec, [*overrides, *own]) for words, own in combinations}
    compared = compare_specs(planners)
    if as_json:
        print_json(compared.as_json())
    else:
        echo(plan_text(compared, width=max(60, output_width(80))).rstrip("\n"))


def prepare_members(
    spec: str, overrides: Sequence[str], values: Values, seeds: int | None, processes: int
) -> list[Member]:
    """Prepare all combinations as their runs will be, so that whatever a run refuses is refused here; seeds change nothing of that.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: with all problems of all combinations; or two of them are the same run.
    """
    from petra_graph.training.identity import resolved
    from petra_graph.training.prepare import prepare

    if spec == STDIN:
        raise SpecError("a spec from the standard input cannot be read by several processes", "write it to a file")
    combinations = combine({key: texts for key, texts in values.items() if key != _SEED}, overrides)
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


def _write_comparison(members: Sequence[Member]) -> Any:
    """Write the page of the runs that have begun; return what `petra-graph report --json` prints, or None if none has begun."""
    from petra_graph.report.pages.runs_page import report_runs

    begun = [str(one.directory) for one in members if one.directory is not None]
    try:
        return report_runs(begun, members[0].folder / PAGE) if begun else None
    except SpecError as error:  # a damaged run, which has been named, or no matplotlib
        echo(f"no {PAGE} is written: {error.problems[0].message}", err=True)
        return None


def results_table(runs: Sequence[RecordedRun], width: int) -> str:
    """Write the groups of runs that differ in their seed alone, the best first, as the page has them."""
    from petra_graph.report.pages.runs_page import answers

    if not runs:
        return "no run is done\n"
    groups = group_runs(runs)
    lines = [f"{head}: {text}\n" for head, text in answers(groups)]
    return "\n".join([*table_lines(group_columns(groups), width), "", "".join(lines)])
