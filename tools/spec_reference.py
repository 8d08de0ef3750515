"""The tables of two pages, generated: of specs/README.md every spec, key and option; of the conformance kit's every promise.

    python -m tools.spec_reference            # exit code 1 where a page differs from what would be generated
    python -m tools.spec_reference --write

Decision: the tables come from the JSON schema, as editors get it, and from the kit's promises, as a run and a test ask them, so
that the pages and the checks have one source. Each table is between two comments that name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from petra_graph_authoring.spec_schema import spec_schema
from petra_graph_conformance.all_checks import CHECKS

from petra_graph.errors import shown
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.callback import CallbackDeclaration
from petra_graph.kinds.declaration import NoOptions
from petra_graph.kinds.graph_pass import GRAPH_PASS
from petra_graph.kinds.metric import MetricDeclaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.measure_network import measure
from petra_graph.program.schedule import schedule_text
from petra_graph.registry.registry import Registry, discover
from petra_graph.spec.value_types import class_schema

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("petra-graph", "petra-graph-delay", "petra-graph-modules", "petra-graph-studies", "petra-graph-vision")
"""Those whose tables and options the page has."""
PAGES = (ROOT / "specs" / "README.md", ROOT / "plugins" / "petra-graph-conformance" / "README.md")
BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
}
Schema = Mapping[str, Any]


@click.command()
@click.option("--write", is_flag=True, help="Write the tables into the pages.")
def main(write: bool) -> None:
    """Compare the tables of the pages with what is generated, or write them."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        current = generated(text)
        if write:
            page.write_text(current, encoding="utf-8")
        elif current != text:
            name = page.relative_to(ROOT)
            raise click.ClickException(f"{name} is out of date: run `python -m tools.spec_reference --write`")


def generated(page: str) -> str:
    """Return a page with its tables as they are now; a page has some of them."""
    registry = discover().only(DISTRIBUTIONS)
    tables: Mapping[str, Callable[[], Iterator[str]]] = {
        "specs": specs,
        "keys": lambda: keys(registry),
        "options": lambda: options(registry),
        "promises": promises,
    }
    for name, lines in tables.items():
        if f"<!-- generated: {name} -->" in page:
            page = _replaced(page, name, "\n".join(lines()))
    return page


def promises() -> Iterator[str]:
    """Yield the table of all promises, and when each is asked."""
    yield "| kind | promise | meaning | asked |"
    yield "|---|---|---|---|"
    times = {"run": "before a run", "kit": "by `check`"}
    for checks in CHECKS:
        for promise in checks.promises:
            said = "; ".join(text for when, text in times.items() if getattr(promise, when))
            said += "; a warning where it is broken" * promise.doubt
            yield f"| {checks.kind.noun} | {promise.name} | {promise.sentence.replace('|', chr(92) + '|')} | {said} |"


def specs() -> Iterator[str]:
    """Yield the table of the folder's specs."""
    yield "| spec | network | data | method, schedule, k | micro-batch | epochs | parameters | stages |"
    yield "|---|---|---|---|---|---|---|---|"
    for path in sorted((ROOT / "specs").glob("*.toml")):
        checked = check_spec(str(path))
        network, spec = measure(checked), checked.spec
        assert checked.stages is not None
        named = spec.architecture
        model = "nodes listed in the file"
        if named is not None:
            given = ", ".join(f"{key} {value}" for key, value in named.options.items())
            model = f"`{named.name}`, {given}"
        method = f"`{spec.method.name}`, `{schedule_text(checked.schedule)}`, {spec.method.accumulation}"
        yield (
            f"| [{path.stem}]({path.name}) | {model} | `{spec.data.name}` | {method} | {spec.data.batch} | "
            f"{spec.run.epochs} | {network.parameters:,} | {len(checked.stages.stages)} |"
        )


def keys(registry: Registry) -> Iterator[str]:
    """Yield a section for every table of a specification; the keys above all tables come first."""
    whole = spec_schema(registry)["properties"]
    required = class_schema(registry.spec_class, complete=True)
    simple = {key: schema for key, schema in whole.items() if not _tables({key: schema})}
    yield from _section("Keys above all tables", simple, required)
    yield from _tables_of(whole, required, ())


def options(registry: Registry) -> Iterator[str]:
    """Yield a section for every group of plugins, with the options of each."""
    for kind in registry.kinds:
        if kind is GRAPH_PASS:  # its options are a table of the specification
            continue
        yield f"### Options of {kind.nouns}"
        yield ""
        for name in registry.names(kind):
            yield from _plugin(registry.resolve(kind, name))


def _plugin(plugin: Plugin) -> Iterator[str]:
    declaration = plugin.declaration
    kind = f" ({declaration.kind})" if isinstance(declaration, BlockDeclaration) else ""
    if isinstance(declaration, CallbackDeclaration | MetricDeclaration):
        kind = f" ({', '.join(declaration.abilities)})"
    none = " It has no options." if declaration.options is NoOptions else ""
    yield f"**`{plugin.name}`**{kind}: {declaration.summary}{none}"
    yield ""
    if not none:
        schema = class_schema(declaration.options, complete=True)
        yield from _rows("option", schema["properties"], schema)
        yield ""


def _tables_of(properties: Schema, complete: Schema, above: tuple[str, ...]) -> Iterator[str]:
    for name, (schema, is_list) in _tables(properties).items():
        full = complete["properties"][name]
        path = (*above, name) if "properties" in full or is_list else (*above, name, "NAME")
        dotted = ".".join(path)
        full = _inside(full)
        title = f"`[[{dotted}]]`" if is_list else f"`[{dotted}]`"
        yield from _section(title, schema["properties"], full, properties[name].get("description", ""))
        yield from _tables_of(schema["properties"], full, path)


def _tables(properties: Schema) -> dict[str, tuple[Schema, bool]]:
    """Return the keys whose value is a table with keys of its own, or a list of them; plugins' options are neither."""
    items = {key: (_inside(schema), "items" in schema) for key, schema in properties.items()}
    return {key: item for key, item in items.items() if "properties" in item[0]}


def _inside(schema: Schema) -> Schema:
    """Return the schema of each table of a list, or of a table of tables; any other schema as it is."""
    named = schema.get("additionalProperties")
    return schema.get("items", named if isinstance(named, dict) else schema)  # type: ignore[no-any-return]


def _section(title: str, properties: Schema, complete: Schema, text: str = "") -> Iterator[str]:
    yield f"### {title}"
    yield ""
    if text:
        yield text[0].upper() + text[1:].removesuffix(".") + "."
        yield ""
    yield from _rows("key", properties, complete)
    yield ""


def _rows(word: str, properties: Schema, complete: Schema) -> Iterator[str]:
    yield f"| {word} | type and range | default | meaning (unit) |"
    yield "|---|---|---|---|"
    for key, schema in properties.items():
        text = schema.get("description", "").replace("|", "\\|")
        if _tables({key: schema}):
            text = f"{text.removesuffix('.')}; a table of its own, below"
        default = "*required*" if key in complete.get("required", ()) else _default(schema)
        yield f"| `{key}` | {_type(schema)} | {default} | {text} |"


def _default(schema: Schema) -> str:
    return f"`{shown(schema['default'])}`" if "default" in schema else ""


def _type(schema: Schema) -> str:
    each = _bounds(schema.get("items", {}))
    return f"{_kind(schema)} {_bounds(schema)}".strip() + _length(schema) + (f", each {each}" if each else "")


def _bounds(schema: Schema) -> str:
    return ", ".join(text.format(schema[bound]) for bound, text in BOUNDS.items() if bound in schema)


def _length(schema: Schema) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is None and most is None:
        return ""
    if least == most:
        return f", {least} of them"
    return f", at least {least}" if most is None else f", {least or 0} to {most} of them"


def _kind(schema: Schema) -> str:
    kind = str(schema.get("type", "any value"))
    match schema:
        case {"anyOf": [{"enum": _}, {"pattern": ":"}]}:
            kind = "name of a plugin"
        case {"anyOf": members}:
            kind = " or ".join(map(_type, members))
        case {"const": value}:
            kind = f"`{shown(value)}`"
        case {"enum": values}:
            kind = ", ".join(f"`{shown(value)}`" for value in values)
        case {"type": "array"}:
            kind = f"list of {_plural(schema.get('items') or schema['prefixItems'][0])}"
        case {"type": "object"}:
            kind = "table"
    return kind


def _plural(schema: Schema) -> str:
    if "enum" in schema:
        return _kind(schema)
    first, _, rest = _kind(schema).partition(" ")
    return f"{first}s {rest}".rstrip()


def _replaced(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    found = pattern.findall(page)
    assert len(found) == 1, f"a page must have one section between {begin} and {end}"
    return pattern.sub(lambda _: f"{begin}\n\n{text.rstrip()}\n\n{end}", page)


if __name__ == "__main__":
    main()
