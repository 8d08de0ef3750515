"""What is other in a resumed run than when it last began or was resumed: its specification, its code, its data.

Decision: where nothing is left to train, nothing is written. Other values would only falsify the record of weights that were trained
without them, so they are refused there.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.record.run_files import read_json
from petra_graph.record.weights import WEIGHTS
from petra_graph.spec.load_spec import load
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.digests import library_versions, list_changes, read_digests
from petra_graph.training.record.resolved_spec import flat_values, resolved
from petra_graph.training.record.run_summary import Summary
from petra_graph.units import bounded

_WIDTH = 160
_UNSET = "unset"


@frozen(kw_only=True)
class ChangedSince:
    notes: Sequence[str]
    """What the user should know before the training continues."""
    changed: Sequence[str]
    """What the run's summary says from then on, each as in "before forward 1500: run.epochs: 3 then, 4 now"."""
    summary: Summary | None
    """The summary of a run of which nothing is left to train, and which has all of its files; None of any other run."""

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
        values, epochs = compare_values(resumption, prepared), prepared.spec.run.epochs
        of_callbacks = [text for text in values if text.startswith("callback")]
        ended, stopped = "", summary.get("stopped_early")
        if position["epoch"] > epochs and not position["evaluates"]:
            ended = f"nothing is left to train: run.epochs is {epochs}; set it higher to continue"
        elif stopped and summary.get("micro_batches") == resumption.at and not of_callbacks:
            ended = f"nothing is left to train: the run stopped early, {stopped}; change its callbacks to continue"
        if ended and asked and values:
            told = f"{ended}; what was set would only change the record: {bounded('; '.join(values), _WIDTH)}"
            raise SpecError(told, "leave out --set, or set what lets the run continue, too")

        made_of = list_changes(read_digests(directory), prepared.digests)
        versions = list_changes(resumption.manifest.versions, library_versions())
        notes = [f"changed: {bounded(text, _WIDTH)}" for text in values]
        notes += [f"warning: changed since the training before: {text}" for text in made_of]
        changed = [*values, *made_of, *versions]
        whole = summary.get("status") == "done" and (directory / WEIGHTS).is_file()
        return cls(
            notes=[*notes, ended] if ended else notes,
            changed=[f"before forward {resumption.at}: {text}" for text in changed],
            summary=summary if ended and whole else None,
        )


def refuse_other(resumption: Resumption, prepared: Prepared) -> None:
    """Refuse a specification that is not the run's, where one was given again."""
    if differ := compare_values(resumption, prepared):
        hint = "resume with `petra-graph run --resume RUN`, and name what differs with --set"
        raise SpecError(
            [Problem(message=f"the run to resume is another one: {text}", hint=hint) for text in differ[:3]]
        )


def compare_values(resumption: Resumption, prepared: Prepared) -> list[str]:
    """Return the values that are not those of the run's resolved specification; the folder of the results may differ."""
    loaded = load(str(resumption.directory / "resolved.toml"), ())
    then = loaded.spec
    if then is None:  # it has a key of an earlier version, which the resume sets
        return [f"{one.message} then" for one in loaded.problems]
    before, now = flat_values(then), flat_values(resolved(prepared))
    keys = dict.fromkeys([*before, *now])
    return list_changes(*({key: values.get(key, _UNSET) for key in keys} for values in (before, now)))
