"""What a test gives as a plugin: its code, its declaration, or the plugin itself."""

from __future__ import annotations

import re
from typing import Any

from petra_graph.errors import SpecError
from petra_graph.plugins.contract import Plugin, PluginKind, read_options, stated_by


def as_plugin(kind: PluginKind, given: Any, options: Any = None) -> tuple[Plugin, Any]:
    """Return a plugin without a distribution, and its options.

    Args:
        kind: of the plugin.
        given: its code or declaration, or a plugin.
        options: its `options` table, or an instance of its options class; None: no keys.

    Raises:
        TypeError: it is no plugin of this kind.
        SpecError: its options class refuses the options.
    """
    if isinstance(given, Plugin):
        plugin = given
    else:
        named = ":".join(str(getattr(given, name, "")) for name in ("__module__", "__qualname__"))
        declaration = kind.declared_by(given, re.sub(r"[^\w.:]", "", named))
        if not isinstance(declaration, kind.declaration):
            raise TypeError(f"{named} is no {kind.noun}: {kind.fault_of(declaration)}")
        code = None if declaration is stated_by(given) else given
        plugin = Plugin(kind=kind, name=declaration.build, distribution="", declaration=declaration, code=code)
    if isinstance(options, plugin.declaration.options):
        return plugin, options
    read, problems = read_options(plugin, options or {}, ("options",))
    if problems:
        raise SpecError(problems)
    return plugin, read
