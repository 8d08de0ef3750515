"""Several texts of one Python module as one text: their imports together at the top, sorted, then their bodies."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence

_WIDTH = 100


def merged(texts: Sequence[str], docstring: str, own: str) -> str:
    """Return a module.

    Args:
        texts: modules without docstrings, which begin with their imports, if they have any.
        own: the package that the module belongs to; its imports come last.
    """
    imported: dict[str, set[str]] = {}
    bodies = []
    for text in texts:
        tree = ast.parse(text)
        heads = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in heads:
            names = [ast.unparse(alias) for alias in node.names]
            if isinstance(node, ast.Import):
                imported.update({name: imported.get(name, set()) for name in names})
            else:
                imported.setdefault(f"{node.module} import", set()).update(names)
        last = max((node.end_lineno or 0 for node in heads), default=0)
        bodies.append("".join(text.splitlines(keepends=True)[last:]).strip("\n"))
    imports = "\n\n".join(_sections(imported, own))
    return "\n\n\n".join(filter(None, [f'"""{docstring}"""\n\n{imports}'.rstrip(), *bodies])) + "\n"


def _sections(imported: dict[str, set[str]], own: str) -> Iterator[str]:
    """Yield the imports of the standard library, of other packages, and of the own one."""
    for wanted in (0, 1, 2):
        chosen = [source for source in imported if _section(source.split(" ")[0].split(".")[0], own) == wanted]
        plain = sorted(f"import {source}" for source in chosen if not source.endswith(" import"))
        # Names in capitals first, as ruff and isort sort them.
        chosen_from = sorted(source for source in chosen if source.endswith(" import"))
        named = [_from(source, sorted(imported[source], key=_in_order)) for source in chosen_from]
        if plain or named:
            yield "\n".join([*plain, *named])


def _section(top: str, own: str) -> int:
    return 0 if top in sys.stdlib_module_names else 2 if top == own else 1


def _in_order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


def _from(source: str, names: Iterable[str]) -> str:
    line = f"from {source} {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {source} (", *(f"    {name}," for name in names), ")"])
