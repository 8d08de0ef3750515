"""Code that an option names as "module:attribute"."""

from __future__ import annotations

import pkgutil
from typing import Any

from petra_graph.errors import Problem, SpecError


def named_code(option: str, location: str) -> Any:
    """Return what an option names; what importing its module raises is left to the caller's caller, which names the line.

    Raises:
        SpecError: there is no such module, or it has no such attribute.
    """
    try:
        return pkgutil.resolve_name(location)
    except (ImportError, AttributeError, ValueError) as error:
        hint = 'write "module:attribute", of a module that can be imported'
        raise SpecError(Problem(message=f"there is no {location}: {error}", hint=hint, path=(option,))) from error
