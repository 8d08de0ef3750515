"""Importing the code behind a declaration, at the moment when it is built."""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import Any

from petra_graph.errors import PluginError, Problem


def load_build(target: str, what: str) -> Any:
    """Import "module:attribute".

    Args:
        target: the declaration's `build`.
        what: the plugin, for messages.

    Raises:
        PluginError: the module cannot be imported, or has no such attribute; the message says where its code failed.
    """
    module_name, _, attribute = target.partition(":")
    try:
        value: Any = import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        message = f"{what}: {target} cannot be loaded: {type(error).__name__}: {error}{place}"
        raise PluginError(Problem(message=message, hint="mend or remove the package that provides it")) from error
    return value
