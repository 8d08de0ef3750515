"""The outcome of a trial: each promise kept, broken or not checked, as values that programs read and authors' messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import attrs
from attrs import evolve, frozen

Status = Literal["kept", "broken", "doubtful", "not checked"]


@frozen(kw_only=True)
class Outcome:
    """One promise of a plugin.

    Attributes:
        promise: its name.
        status: kept; broken; doubtful, if what breaks it may be meant; or not checked, if a promise that it rests on is broken.
        found: the observation that breaks it, by how much; "" where it is kept.
        remedy: what the author can do.
    """

    promise: str
    status: Status
    found: str = ""
    remedy: str = ""


def findings(outcomes: Iterable[Outcome]) -> list[str]:
    """Return broken and doubtful promises as authors read them; what breaks several of them stands once."""
    together: dict[Outcome, list[str]] = {}
    for outcome in outcomes:
        together.setdefault(evolve(outcome, promise=""), []).append(outcome.promise)
    return [_text(names, outcome) for outcome, names in together.items()]


def _text(names: Sequence[str], outcome: Outcome) -> str:
    doubt = "doubtful: " if outcome.status == "doubtful" else ""
    remedy = f"\n    do: {outcome.remedy}" if outcome.remedy else ""
    return f"{', '.join(names)}: {doubt}{outcome.found}{remedy}"


@frozen(kw_only=True)
class Report:
    """The outcomes of all promises of a plugin, in the order in which they were checked.

    Attributes:
        kind: "block", "optimizer", and so on.
        name: of the plugin.
        trial: the options and inputs with which it was tried, in words.
        outcomes: one for each promise.
    """

    kind: str
    name: str
    trial: str
    outcomes: Sequence[Outcome]

    @property
    def broken(self) -> tuple[Outcome, ...]:
        """The broken promises."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "broken")

    @property
    def doubtful(self) -> tuple[Outcome, ...]:
        """The promises that are broken, where that may be meant."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "doubtful")

    @property
    def kept(self) -> bool:
        """Whether no promise is broken."""
        return not self.broken

    def record(self) -> dict[str, Any]:
        """Return the report in JSON's types."""
        return attrs.asdict(self) | {"kept": self.kept}

    def __str__(self) -> str:
        """Return the broken promises as text, or that all are kept."""
        head = f"{self.name} ({self.trial})"
        if self.kept:
            checked = sum(outcome.status == "kept" for outcome in self.outcomes)
            return f"{head} keeps {checked} promises"
        count = f"{len(self.broken)} promises" if len(self.broken) > 1 else "a promise"
        return "\n".join([f"{head} breaks {count}", *findings(self.broken)])
