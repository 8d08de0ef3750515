"""What is other in a resumed run than when it last began or was resumed: its specification, its code, its data.

Decision: where nothing is left to train, nothing is written. Other values would only falsify the record of weights that were trained
without them, so they are refused there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from attrs import frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.record.recorded_run import read_json
from petra_graph.record.run_history import ChangedResume
from petra_graph.record.weights import WEIGHTS
from petra_graph.spec.load_spec import load
from petra_graph.spec.value_types import as_mapping, flat
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.processes.rank_agreement import LIBRARIES
from petra_graph.training.record.digests import list_changes, read_digests
from petra_graph.training.record.resolved_spec import resolved
from petra_graph.training.record.run_summary import Summary
from petra_graph.units import bounded, left_out

_LISTED, _WIDTH = 5, 160
_UNSET = "unset"


@frozen(kw_only=True)
class ChangedSince:
    """The changes, each as in "run.epochs: 3 then, 4 now"."""

    at: int
    """The forward before which the run continues."""
    updates: int
    """The updates of the head's stage before it."""
    values: Sequence[str]
    """Of the specification."""
    made_of: Sequence[str]
    """Of code and data."""
    versions: Sequence[str]
    """Of the libraries that the bits depend on."""
    ended: str
    """Why nothing is left to train; "" if something is."""
    summary: Summary | None
    """Of a run that has ended, with all of its files."""

    @classmethod
    def of(cls, resumption: Resumption, prepared: Prepared, *, asked: bool) -> ChangedSince:
        """Compare a run with its directory.

        Args:
            asked: whether values were set at the resume.

        Raises:
            SpecError: they are others, and nothing is left that could be trained with them.
        """
        directory, position = resumption.directory, resumption.manifest.position
        summary = read_json(directory / "summary.json", dict) or {}
        values, epochs = changed_values(resumption, prepared), prepared.spec.run.epochs
        ended, stopped = "", summary.get("stopped_early")
        if position["epoch"] > epochs and not position["evaluates"]:
            ended = f"nothing is left to train: run.epochs is {epochs}; set it higher to continue"
        elif stopped and summary.get("micro_batches") == resumption.at and not any(map(_of_callbacks, values)):
            ended = f"nothing is left to train: the run stopped early, {stopped}; change its callbacks to continue"
        if ended and asked and values:
            told = f"{ended}; what was set would only change the record: {bounded('; '.join(values), _WIDTH)}"
            raise SpecError(told, "leave out --set, or set what lets the run continue, too")
        whole = summary.get("status") == "done" and (directory / WEIGHTS).is_file()
        return cls(
            at=resumption.at,
            updates=position["updates"],
            values=values,
            made_of=list_changes(read_digests(directory), prepared.digests),
            versions=list_changes(resumption.manifest.versions, {name: version(name) for name in LIBRARIES}),
            ended=ended,
            summary=summary if ended and whole else None,
        )

    @property
    def notes(self) -> list[str]:
        """What the user should know before the training continues."""
        said = [f"changed: {bounded(text, _WIDTH)}" for text in self.values[:_LISTED]]
        said += [f"changed: {left_out(more, 'values')}"] if (more := len(self.values) - _LISTED) > 0 else []
        said += [f"warning: changed since the training before: {text}" for text in self.made_of]
        return [*said, self.ended] if self.ended else said

    @property
    def history(self) -> ChangedResume | None:
        """The changes as the history of the run has them; None without changes."""
        every = [*self.values, *self.made_of, *self.versions]
        return ChangedResume(at=self.at, updates=self.updates, changed=every) if every else None


def refuse_other(resumption: Resumption, prepared: Prepared) -> None:
    """Refuse a specification that is not the run's, where one was given again."""
    if differ := changed_values(resumption, prepared):
        hint = "resume with `petra-graph run --resume RUN`, and name what differs with --set"
        raise SpecError(
            [Problem(message=f"the run to resume is another one: {text}", hint=hint) for text in differ[:3]]
        )


def changed_values(resumption: Resumption, prepared: Prepared) -> list[str]:
    """Return the values that are not those of the run's resolved specification; the folder of the results may differ."""
    loaded = load(str(resumption.directory / "resolved.toml"), (), type(prepared.spec))
    then = loaded.spec
    if then is None:  # it has a key of an earlier version, which the resume sets
        return [f"{one.message} then" for one in loaded.problems]
    before, now = (dict(flat(as_mapping(spec))) for spec in (then, resolved(prepared)))
    keys = [key for key in dict.fromkeys([*before, *now]) if key != "run.directory"]
    return list_changes(*({key: values.get(key, _UNSET) for key in keys} for values in (before, now)))


def _of_callbacks(text: str) -> bool:
    return text.startswith("callback")
