"""All checks of a plugin at once, for tests of plugins."""

from __future__ import annotations

from collections.abc import Collection

from petra_graph.testing.examination import AnyTrial, examine


def kept(trial: AnyTrial, leave_out: Collection[str] = ()) -> None:
    """Expect that a plugin passes all checks, but for those that are left out."""
    broken = [
        f"{one.check}: {one.found}" for one in examine(trial) if one.status == "broken" and one.check not in leave_out
    ]
    assert not broken, f"{trial.plugin.name}: {broken}"
