"""Everything from a specification to a run, and what is done with a run, as functions; `import petra_graph` has these names.

The functions call what the command line calls, so a run through either has the same bits, and put back what they set in the process.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from attrs import define, field, frozen

from petra_graph.compiler.plan import Plan
from petra_graph.errors import SpecError
from petra_graph.inference.export import Exported, Format, export_network
from petra_graph.inference.predict import Prediction, as_samples, continued_text, predict_samples, read_file
from petra_graph.inference.saved_run import Evaluation, SavedRun, evaluate_run
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.place_network import SavedPlan
from petra_graph.planning.plan_spec import Planner
from petra_graph.plugins.callback import Listener
from petra_graph.record.run_directory import SUMMARY, directory_to_resume, find_run, read_json, read_run, status_of
from petra_graph.report.pages.plan_page import page
from petra_graph.report.plan_text import plan_text
from petra_graph.report.progress import Progress, summary_lines
from petra_graph.spec.in_code import assignments, made_again, module_table
from petra_graph.spec.load_spec import load as read_spec
from petra_graph.spec.model import Spec
from petra_graph.training.run import run
from petra_graph.training.trained_network import Network

Changes = Mapping[str, Any]
"""Values of a spec by key: {"run.epochs": 3}. A plugin's class may be given instead of its name."""
Overrides = tuple[str, ...]  # the same as of `--set`: ("run.epochs=3",)
Weights = str | Mapping[str, torch.Tensor] | None


@frozen(repr=False)
class PlanView:
    """A plan; `plan` has its values, and `plan.as_json()` what `petra-graph plan --json` prints."""

    plan: Plan

    def text(self, *, verbose: bool = False) -> str:
        """Return the plan as a terminal shows it, with every table and assumption if `verbose`."""
        return plan_text(self.plan, verbose=verbose)

    def html(self) -> str:
        """Return the plan as one page that needs no other file; matplotlib draws it."""
        return page(self.plan)

    def __repr__(self) -> str:
        return self.text()


def load_spec(path: str | Path, changes: Changes | None = None) -> Spec:
    """Return a TOML file's specification, with all that it extends, checked, and with values changed.

    Raises SpecError with all problems, their file, line and what to do; PluginError if only plugins are at fault.
    """
    return check_spec(str(path), assignments(changes)).spec


def make_spec(nodes: Sequence[Mapping[str, Any]] | None = None, *, module: Any = None, **tables: Any) -> Spec:
    """Return a specification made in code, with the keys and values of a TOML file; plugins are checked when it is planned or run.

    A class or function at the top level of a module or of a notebook may be given instead of the name of a plugin of any kind.

    Args:
        nodes: the network, node by node: the tables `[[graph.node]]`, which need no names here, or only their blocks: [Stem, {"block": Out, "kind": "head"}].
        module: instead, what makes a torch.nn.Module whose parts are the nodes: module=MyNet, or functools.partial(MyNet, layers=4). Other options
            of the architecture "module" are in architecture={"options": {...}}.
        tables: all others, as in data={"name": "digits", "batch": 32}, run={"epochs": 3}.

    Raises SpecError with all problems of keys and values.
    """
    if nodes is not None:
        named, seen = list[object](), Counter[str]()
        for one in nodes:  # without a name, it goes by its block's, numbered from the second one on
            table = one if isinstance(one, Mapping) else {"block": one}
            if "block" in table and "name" not in table:
                code = table["block"]
                called = code if isinstance(code, str) else getattr(code, "__name__", "node")
                name = called.replace(":", ".").rpartition(".")[2].lower()
                seen[name] += 1
                table = {"name": f"{name}-{seen[name]}" if seen[name] > 1 else name, **table}
            named.append(table)
        tables["graph"] = {**tables.get("graph", {}), "node": named}
    if module is not None:
        tables["architecture"] = module_table(module, tables.get("architecture", {}))
    if callable(getattr(tables.get("loss"), "state_dict", None)) and not isinstance(tables["loss"], type):
        tables["loss"] = made_again(tables["loss"])
    loaded = read_spec(tables)
    if loaded.spec is None:
        raise SpecError(loaded.problems)
    return loaded.spec


def plan(spec: Spec | str | Path, changes: Changes | None = None) -> PlanView:
    """Plan a specification, or its file, with values changed: stages, devices, memory, staleness, traffic and speed, before anything runs.

    Raises NoFeasiblePlan if no placement keeps the devices' memory limits, with changes that would help; else as `load_spec`.
    """
    given = spec if isinstance(spec, Spec) else str(spec)
    return PlanView(Planner(given, assignments(changes)).plan(with_timeline=True))


def train(
    spec: Spec | str | Path | None = None,
    changes: Changes | None = None,
    *,
    plan: PlanView | str | Path | None = None,
    resume: Run | str | Path | None = None,
    listener: Listener | None = None,
) -> Run:
    """Train a specification, or its file, with values changed, as `petra-graph run` does, to the bit.

    An interruption (Ctrl-C, or a notebook's stop button) ends the run between two micro-batches, with a checkpoint and the status "interrupted".

    Args:
        plan: whose stages, devices and depths the run takes, or the file of a saved one; with it the run's summary compares what they take.
        resume: instead of a specification, a run to continue, or its directory, or "latest": the newest.
        listener: observes the training, instead of the progress on stderr.

    Raises SpecError, PluginError or NoFeasiblePlan before anything is written, and RunFailed afterwards: the run directory has the details.
    """
    if (spec is None) == (resume is None):
        raise TypeError("give a specification, or `resume`: a resumed run keeps its specification")
    overrides, directory, saved = assignments(changes), None, None
    if resume is not None:
        directory = directory_to_resume(str(resume.directory if isinstance(resume, Run) else resume), overrides)
        spec = directory / "resolved.toml"
    if plan is not None:
        saved = SavedPlan(plan.plan, "the given plan") if isinstance(plan, PlanView) else SavedPlan.read(str(plan))
    given = spec if isinstance(spec, Spec) else str(spec)
    with threads_as_before():
        result = run(given, overrides, listener or Progress(), directory, saved)
    assert result.summary is not None, "this process records"
    return Run(result.summary["directory"])


@define(eq=False, repr=False)
class Run:
    """A run's directory, whatever became of the run; what its methods find changed since the training is told.

    `changes` are values of the spec to set, `weights` those of a checkpoint, named "latest", "best" or by the forward behind it, or of a file, or
    tensors by their names in `weights.safetensors`; None: those at the run's end. `changed` takes a network that computes something else than in
    its training, with a warning. Each method raises SpecError where the run or its weights do not exist, or the network has changed.
    """

    directory: Path = field(converter=Path)
    _tell: Callable[[str], None] = warnings.warn

    @property
    def summary(self) -> Mapping[str, Any]:
        """How the run ended: its status, its latest means, its throughput; empty while it runs."""
        return read_json(self.directory / SUMMARY)

    @property
    def status(self) -> str:
        """How the run stands: "done", "interrupted", "failed", "running", or "killed", without a word."""
        return status_of(self.directory)

    def metrics(self, name: str) -> list[tuple[int, float]]:
        """Return what was recorded of a metric, as "test/loss": its steps, counted in micro-batches, with its values."""
        return [(one.step, one.value) for one in read_run(self.directory).metrics.get(name, ())]

    def load(self, *, weights: Weights = None, changed: bool = False) -> Network:
        """Return the network as an ordinary `torch.nn.Module`, in evaluation mode on the CPU.

        It maps samples [n, *shape], as the data set has them, to the head's outputs; images in uint8 are normalised inside.
        """
        return self._open(changed=changed).load(weights)[0]

    def evaluate(
        self,
        changes: Changes | Overrides | None = None,
        *,
        weights: str | None = None,
        split: Literal["test", "validation", "train"] = "test",
        device: str = "cpu",
    ) -> Evaluation:
        """Evaluate the network on the run's data, or on other data that `changes` name, as in {"data.options.root": "other/images"}."""
        opened = self._open(changes, changed=True)
        with threads_as_before():
            found = evaluate_run(opened, which=weights, split=split, device=device)
        for text in found.changed[len(opened.changed) :]:  # the others have been told
            self._tell(f"changed since the training: {text}")
        return found

    def predict(
        self,
        samples: Any,
        changes: Changes | Overrides | None = None,
        *,
        top: int = 3,
        weights: str | None = None,
        device: str = "cpu",
        changed: bool = False,
    ) -> list[Prediction]:
        """Ask the network about a file or several (images, .npy, or what the data set reads), or an array [n, *shape] or [*shape] in the data set's type."""
        opened = self._open(changes, changed=changed)
        samples = [samples] if isinstance(samples, str | Path) else samples
        if isinstance(samples, Sequence):
            data = opened.network.checked.data
            found = [(str(file), read_file(str(file), data, opened.facts)) for file in samples]
        else:
            found = [("the array", as_samples(samples, "the array", opened.facts))]
        return predict_samples(opened, opened.load(weights, device)[0], found, top=top, device=device)

    def sample(
        self,
        changes: Changes | Overrides | None = None,
        *,
        weights: Weights = None,
        device: str = "cpu",
        changed: bool = False,
        **options: Any,
    ) -> str:
        """Continue a text by a network of next tokens; its options are those of `petra-graph predict --prompt`."""
        opened = self._open(changes, changed=changed)
        return continued_text(opened, opened.load(weights, device)[0], device=device, **options)

    def export(
        self, form: Format, file: str | Path | None = None, *, weights: str | None = None, changed: bool = False
    ) -> Exported:
        """Write the network as a program, to `network` in the run's directory unless a file is named, and compare what was written with it."""
        opened = self._open(changed=changed)
        return export_network(opened, opened.load(weights)[0], form, None if file is None else Path(file))

    def __repr__(self) -> str:
        summary = self.summary
        return "\n".join(summary_lines(summary)) if summary else f"a {self.status} run in {self.directory}"

    def _open(self, changes: Changes | Overrides | None = None, *, changed: bool) -> SavedRun:
        overrides = changes if isinstance(changes, tuple) else assignments(changes)
        opened = SavedRun.open(self.directory, overrides, changed=changed)
        for text in opened.changed:
            self._tell(f"changed since the training: {text}")
        return opened


def open_run(run: Run | str | Path) -> Run:
    """Return a run: by the name that `petra-graph runs` prints, by its directory, or the latest one as "latest". Raises SpecError if no run has that name."""
    return run if isinstance(run, Run) else Run(find_run(str(run)))


def load(run: Run | str | Path, *, weights: Weights = None, changed: bool = False) -> Network:
    """Return a run's network as an ordinary `torch.nn.Module`, as `Run.load`."""
    return open_run(run).load(weights=weights, changed=changed)


@contextmanager
def threads_as_before() -> Iterator[None]:
    """Restore the process's number of threads afterwards; the bits of a run depend on it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
