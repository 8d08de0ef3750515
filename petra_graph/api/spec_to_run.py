"""Everything from a specification to a plan or a run, as functions; `import petra_graph` has these names.

Decision: the functions call the modules that the command line calls, so a run through either has the same
bits. They put back what they set in the process: torch's number of threads, and handlers of signals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from petra_graph.api.finished_run import Changes, Run, threads_as_before
from petra_graph.compiler.plan import Plan
from petra_graph.errors import SpecError, kind_of
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.saved_plan import SavedPlan
from petra_graph.plugins.callback import Listener
from petra_graph.record.recorded_run import directory_to_resume
from petra_graph.report.pages.plan_page import page
from petra_graph.report.plan_text import plan_text
from petra_graph.report.progress import Progress
from petra_graph.spec.in_code import assignments, made_again, module_table
from petra_graph.spec.load_spec import load
from petra_graph.spec.model import Spec
from petra_graph.training.run import run


class PlanView:
    """A plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        """Its values; `as_json` returns what `petra-graph plan --json` prints."""

    def text(self, width: int = 80, *, verbose: bool = False) -> str:
        """Return the plan as a terminal of `width` columns shows it, with every table and assumption if `verbose`."""
        return plan_text(self.plan, width=width, verbose=verbose)

    def html(self) -> str:
        """Return the plan as one page that needs no other file; matplotlib draws it."""
        return page(self.plan)

    def __repr__(self) -> str:
        return self.text()


def load_spec(path: str | Path, changes: Changes | None = None) -> Spec:
    """Return a TOML file's specification, with all that it extends, checked.

    Args:
        changes: values to set.

    Raises:
        SpecError: the file is wrong; the error has all problems, with file, line and what to do.
        PluginError: only plugins are at fault.
    """
    return check_spec(given_specification(path), assignments(changes)).spec


def make_spec(nodes: Sequence[Mapping[str, Any]] | None = None, *, module: Any = None, **tables: Any) -> Spec:
    """Return a specification made in code, with the keys and values of a TOML file.

    A class or function may be given instead of the name of a plugin of any kind. It is found again by its module and its name, so it must
    be at the top level of a module or of a notebook.

    Args:
        nodes: the network, node by node: the tables `[[graph.node]]`, which need no names here, or only their blocks: [Stem, pg.head(...)].
            Without nodes, `module` or `architecture` is the network.
        module: a class of any torch.nn.Module, or a function that makes one, whose parts are the nodes: module=MyNet, or with arguments
            module=functools.partial(MyNet, layers=4). Shapes follow from the data. Other options of the architecture "module" are in
            architecture={"options": {"split": ["layers"]}}.
        tables: all others, as in data={"name": "digits", "batch": 32}, run={"epochs": 3}.

    Raises:
        SpecError: keys or values are wrong; the error has all problems. Plugins are checked when the specification is planned or run.
    """
    if nodes is not None:
        tables = {**tables, "graph": {**tables.get("graph", {}), "node": _make_node_tables(nodes)}}
    if module is not None:
        tables = {**tables, "architecture": module_table(module, tables.get("architecture", {}))}
    if callable(getattr(tables.get("loss"), "state_dict", None)) and not isinstance(tables["loss"], type):
        tables = {**tables, "loss": made_again(tables["loss"])}
    loaded = load(tables)
    if loaded.spec is None:
        raise SpecError(loaded.problems)
    return loaded.spec


def plan(spec: Spec | str | Path, changes: Changes | None = None) -> PlanView:
    """Plan a specification: stages, devices, memory, staleness, traffic and speed, before anything runs.

    Args:
        spec: or the name of its file.
        changes: values to set.

    Raises:
        SpecError, PluginError: as `load_spec`.
        NoFeasiblePlan: no placement keeps the devices' memory limits; the message names changes that would help.
    """
    planner = Planner(given_specification(spec), assignments(changes))
    return PlanView(planner.plan(with_timeline=True))


def train(
    spec: Spec | str | Path | None = None,
    changes: Changes | None = None,
    *,
    plan: PlanView | str | Path | None = None,
    resume: Run | str | Path | None = None,
    listener: Listener | None = None,
) -> Run:
    """Train a specification, as `petra-graph run` does, to the bit.

    An interruption (Ctrl-C, or a notebook's stop button) ends the run between two micro-batches, with a checkpoint: the
    status in its summary is "interrupted", and `resume` continues it.

    Args:
        spec: or the name of its file; None with `resume`.
        changes: values to set.
        plan: whose stages, devices and depths the run takes, or the file of a saved one; with it the run's summary compares what they take.
        resume: a run to continue, or its directory, or "latest": the newest.
        listener: observes the training, instead of the progress on stderr.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: before anything is written.
        RunFailed: afterwards; the run directory has the details.
    """
    if (spec is None) == (resume is None):
        raise TypeError("give a specification, or `resume`: a resumed run keeps its specification")
    chosen = "" if spec is None else given_specification(spec)
    overrides, directory, saved = assignments(changes), None, None
    if resume is not None:
        directory = directory_to_resume(str(resume.directory if isinstance(resume, Run) else resume), overrides)
        chosen = str(directory / "resolved.toml")
    if plan is not None:
        saved = SavedPlan(plan.plan, "the given plan") if isinstance(plan, PlanView) else SavedPlan.read(str(plan))
    with threads_as_before():
        result = run(chosen, overrides, listener or Progress(), directory, saved)
    assert result.summary is not None, "this process records"
    return Run(result.summary["directory"])


def _make_node_tables(nodes: object) -> list[object]:
    """Return the nodes of a network as a list of tables, each with a name."""
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        raise TypeError(f'nodes are a list, as in [{{"name": "stem", "block": Stem}}, ...] (got {kind_of(nodes)})')
    tables, seen = list[object](), Counter[str]()
    for one in nodes:
        table = one if isinstance(one, Mapping) else {"block": one}
        if "block" in table and "name" not in table:
            code = table["block"]
            called = code if isinstance(code, str) else getattr(code, "__name__", "node")
            name = called.replace(":", ".").rpartition(".")[2].lower()
            seen[name] += 1
            table = {"name": f"{name}-{seen[name]}" if seen[name] > 1 else name, **table}
        tables.append(table)
    return tables


def given_specification(given: Spec | str | Path | None) -> Spec | str:
    """Return a specification, or the name of its file, as `run` and `plan` are given it.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(given, str | Path):
        return str(given)
    if isinstance(given, Spec):
        return given
    raise TypeError(
        f"a specification or the name of its file is wanted (got {kind_of(given)}); pg.make_spec makes one of modules and Datasets, "
        "and for a training loop of your own there is pg.reversible"
    )
