"""The tables of specs/README.md, generated: every key, every plugin that comes with petra-graph.

    python -m tools.spec_reference            # exit code 1 where the page differs from what would be generated
    python -m tools.spec_reference --write

Each table is between two comments that name it. They come from the classes that read a spec, so that the page and the
reader have one source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs
import click

from petra_graph.errors import shown
from petra_graph.plugins.contract import KINDS
from petra_graph.plugins.registry import Registry, discover
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.model import PluginSpec, Spec
from petra_graph.spec.strict_values import LISTS, MAPPINGS, annotated, describe, members

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("petra-graph", "petra-graph-studies", "petra-graph-vision")
"""Those whose plugins the page has."""
PAGE = ROOT / "specs" / "README.md"


@click.command()
@click.option("--write", is_flag=True, help="Write the tables into the page.")
def main(write: bool) -> None:
    """Compare the tables of the page with what is generated, or write them."""
    text = PAGE.read_text(encoding="utf-8")
    current = generated(text)
    if write:
        PAGE.write_text(current, encoding="utf-8")
    elif current != text:
        raise click.ClickException("specs/README.md is out of date: run `python -m tools.spec_reference --write`")


def generated(page: str) -> str:
    """Return the page with its tables as they are now."""
    registry = discover().only(DISTRIBUTIONS)
    tables: Mapping[str, Callable[[], Iterator[str]]] = {
        "keys": lambda: keys(Spec, ""),
        "options": lambda: options(registry),
    }
    for name, lines in tables.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        text = "\n".join([begin, "", *lines()]).rstrip() + f"\n\n{end}"
        before, _, after = page.partition(begin)
        page = before + text + after.partition(end)[2]
    return page


def keys(cls: type, table: str, header: str = "Keys above all tables", text: str = "") -> Iterator[str]:
    """Yield a section for a table of a specification, then those of the tables within it."""
    fields = attrs.fields(attrs.resolve_types(cls))
    yield from [f"### {header}", ""]
    if text:
        yield from [f"{text[0].upper()}{text[1:].removesuffix('.')}.", ""]
    # Tables within have sections of their own, and what the name and the options of a plugin are is said once, above the sections.
    said = {(one.name, one.type) for one in attrs.fields(attrs.resolve_types(PluginSpec))}
    shown_here = [one for one in fields if not inner(one.type) and (one.name, one.type) not in said]
    if shown_here:
        yield from [*rows("key", shown_here), ""]
    for one in fields:
        if within := inner(one.type):
            kind, text, _ = annotated(one.type)
            name = ".".join(filter(None, [table, one.name])) + ".NAME" * any(
                get_origin(member) in MAPPINGS for member in members(kind)
            )
            listed = any(get_origin(member) in LISTS for member in members(kind))
            text = text or (within.__doc__ or "").partition("\n")[0]
            yield from keys(within, name, f"`[[{name}]]`" if listed else f"`[{name}]`", text)


def inner(kind: Any) -> type | None:
    """Return the class of the table that a key is, or of each table that it holds."""
    found = [
        one
        for one in members(annotated(kind)[0])
        for one in (one, *get_args(one))
        if isinstance(one, type) and attrs.has(one)
    ]
    return found[0] if found else None


def options(registry: Registry) -> Iterator[str]:
    """Yield a table for every group of plugins: what each is, and the names of its options."""
    for kind in KINDS:
        yield from [f"### {kind.noun.capitalize()}", "", f"| {kind.noun} | what it is | options |", "|---|---|---|"]
        for name in registry.names(kind):
            plugin = registry.resolve(kind, name)
            if "part" in attrs.fields_dict(plugin.schema):  # a block that architectures make, and nobody writes
                continue
            about = str(getattr(plugin.code, "kind", ""))
            # Not `inspect.getdoc`, which takes a base class's.
            said = (plugin.code.__doc__ or plugin.code.__name__).strip().partition("\n")[0].replace("|", "\\|")
            given = ", ".join(f"`{one.name}`" for one in attrs.fields(plugin.schema))
            yield f"| `{name}`{f' ({about})' if about else ''} | {said} | {given} |"
        yield ""


def _default(one: Any) -> str:
    plain = one.default not in (None, attrs.NOTHING) and not hasattr(one.default, "factory")
    return shown(toml_values(one.default, one.name)) if plain else ""


def rows(word: str, fields: Any) -> Iterator[str]:
    yield from [f"| {word} | type and range | default | meaning (unit) |", "|---|---|---|---|"]
    for one in fields:
        _, text, _ = annotated(one.type)
        kind = describe(one.type).replace("|", "\\|")
        text = text.replace("|", "\\|")
        default = f"`{_default(one)}`" if _default(one) else "*required*" * (one.default is attrs.NOTHING)
        yield f"| `{one.name}` | {kind} | {default} | {text} |"


if __name__ == "__main__":
    main()
