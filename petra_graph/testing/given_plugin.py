"""What a test gives as a plugin: its code, or the plugin itself."""

from __future__ import annotations

from typing import Any

from petra_graph.errors import PluginError, SpecError
from petra_graph.plugins.contract import Plugin, PluginKind, plugin_of, read_options


def as_plugin(kind: PluginKind, given: Any, options: Any = None) -> tuple[Plugin, Any]:
    """Return a plugin without a distribution, and its options.

    Args:
        kind: of the plugin.
        given: its code, or a plugin.
        options: its `options` table, or the options that a plugin was read with; None: no keys.

    Raises:
        TypeError: it is no plugin of this kind.
        SpecError: these are not its options.
    """
    plugin = given
    if not isinstance(given, Plugin):
        named = ":".join(str(getattr(given, name, "")) for name in ("__module__", "__qualname__"))
        try:
            plugin = plugin_of(kind, named, given)
        except PluginError as error:
            raise TypeError(str(error)) from error
    if isinstance(options, plugin.options):
        return plugin, options
    read, problems = read_options(plugin, options or {}, ("options",))
    if problems:
        raise SpecError(problems)
    return plugin, read
