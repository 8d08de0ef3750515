"""All checks of a plugin at once, for tests of plugins."""

from collections.abc import Collection
from typing import Any

from petra_graph.errors import SpecError
from petra_graph.plugins.contract import DATA_SET, plugin_of
from petra_graph.testing import AnyTrial, examine


def kept(trial: AnyTrial, leave_out: Collection[str] = ()) -> None:
    """Expect that a plugin passes all checks, but for those that are left out."""
    broken = [
        f"{one.check}: {one.found}" for one in examine(trial) if one.status == "broken" and one.check not in leave_out
    ]
    assert not broken, f"{trial.plugin.name}: {broken}"


def opened(code: Any, **options: Any) -> Any:
    """The data set of a class with these options, as a run opens it."""
    plugin = plugin_of(DATA_SET, code.__name__, code)
    plugin, problems = plugin.read(options)
    if problems:
        raise SpecError(problems)
    return plugin.build()
