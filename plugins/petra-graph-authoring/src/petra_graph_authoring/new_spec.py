"""A new specification: the tables that most runs change, each key with its meaning, checked before anyone reads it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import attrs
from attrs import frozen
from petra_graph_conformance.options_in_words import PLACEHOLDER, Option, likely_options, list_options, small_options

from petra_graph.errors import Problem, SpecError, shown, suggestion
from petra_graph.kinds.all_kinds import KINDS
from petra_graph.kinds.data_set import DataSetDeclaration
from petra_graph.kinds.declared_data import completed_options, declared_facts, suggested_options
from petra_graph.kinds.plugin import FIRST_PARTY, Plugin, read_options
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.program.method import METHODS
from petra_graph.registry.registry import Registry
from petra_graph.spec.load_spec import load_values
from petra_graph.spec.located_paths import absolute, path_keys
from petra_graph.spec.overrides import Override, parse_override
from petra_graph.units import noun, plural

_COMMENT_COLUMN = 34
_ROOT = "~/data"
"""In place of a folder that only the user knows."""
_CLASSES = 10
"""In place of a number that only the folders tell; a run compares it with them."""
_UPDATES, _LEAST = 4, 4
"""The fewest updates of an epoch, and the least batch, with which a small data set is trained: batch normalisation needs several samples."""
_SCHEDULE = "1f1b"
_KINDS = {kind.table: kind for kind in KINDS if kind.table and not kind.several}


@frozen(kw_only=True)
class NewSpec:
    """A new specification."""

    text: str
    found: str = ""
    """What its data set's files hold, in words; "" if they are not there yet."""
    open_keys: tuple[str, ...] = ()
    """Keys of its data set that only its user knows, and that were not given."""


def new_spec(name: str, names: Mapping[str, str], registry: Registry, overrides: Iterable[str] = ()) -> NewSpec:
    """Return a specification. If the folder of its data set is given and there, the files say how many classes and samples there are.

    Args:
        name: of the specification.
        names: of its plugins, by their tables.
        registry: the installed plugins, and the folders of modules.
        overrides: `--set` assignments, of keys that it has a line for.

    Raises:
        SpecError: a plugin or a key does not exist, they do not go together, or the files are not those of the data set.
        PluginError: a plugin cannot be loaded.
    """
    plugins = {}
    for table, plugin in names.items():
        kind = _KINDS[table]
        plugins[table] = registry.resolve(kind, registry.within(kind, plugin, [FIRST_PARTY]))
    data = plugins["data"]
    given = _with_schedule([parse_override(text) for text in overrides])
    folders = {f"data.options.{key}" for key in path_keys(data.declaration.options)}
    paths = {".".join(one.keys): Path(str(one.value)).expanduser() for one in given if ".".join(one.keys) in folders}
    there = bool(paths) and all(path.exists() for path in paths.values())
    chosen = {one.keys[-1]: one.value for one in given if one.keys[:2] == ("data", "options")}
    suggested = _read_suggestions(data, chosen) if there else {}

    tables = _write_tables(name, plugins, {**_likely_data(data, given, there=there), **suggested})
    lines = [line for table in tables for line in ("", *table)][1:]
    text = _set_values(lines, given, plugins)
    checked = _check(text, registry)
    if not there:
        active = {f"data.options.{line.partition(' ')[0]}" for line in text.splitlines()}
        return NewSpec(text=text, open_keys=tuple(sorted((folders & active) - paths.keys())))

    with _without_lines():
        opened = checked.data.build()
    samples, classes = len(opened.train), opened.facts.classes
    batch = _fitting_batch(samples, checked.spec.method.accumulation)
    if batch < checked.spec.data.batch and not any(one.keys == ("data", "batch") for one in given):
        text = _set_values(lines, [*given, parse_override(f"data.batch={batch}")], plugins)
    of = "" if classes is None else f" of {classes} {noun(classes, 'class', 'es')}"
    found = f"{plural(samples, 'training sample')}{of}, {plural(len(opened.test), 'test sample')}"
    if suggested:
        found += f"; from the files: {', '.join(f'{key} = {shown(value)}' for key, value in suggested.items())}"
    return NewSpec(text=text, found=found)


def _with_schedule(given: Sequence[Override]) -> Sequence[Override]:
    """Return overrides with the schedule of the method that they choose, if it does not run under the written one."""
    values = {".".join(one.keys): one.value for one in given}
    method = METHODS.get(str(values.get("method.name")))
    if method is None or "method.schedule" in values or _SCHEDULE in method.schedules:
        return given
    return [*given, parse_override(f"method.schedule={method.schedules[0]}")]


def _fitting_batch(samples: int, accumulation: int) -> int:
    """Return the largest power of two of which an epoch has enough micro-batches for several updates, or the least useful batch."""
    most = max(min(_LEAST, samples), samples // (_UPDATES * accumulation))
    return 1 << (most.bit_length() - 1)


def _check(text: str, registry: Registry) -> CheckedSpec:
    values = tomllib.loads(text)
    loaded = load_values(values, registry.spec_class)
    with _without_lines(values):
        if loaded.spec is None or loaded.problems:
            raise SpecError(loaded.problems)
        return check_spec(loaded.spec, registry=registry)


@contextmanager
def _without_lines(values: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Name no lines in problems: they are of a file that is not written. A placeholder among its values is to be set by the user."""
    try:
        yield
    except SpecError as error:
        raise SpecError(
            Problem(message=one.message, hint=_how_to_set(one.path, values) or one.hint) for one in error.problems
        ) from None


def _how_to_set(path: Sequence[str | int], values: Mapping[str, Any]) -> str:
    """Return how to give the value at a path, if a placeholder stands there."""
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return f"choose it: --set {'.'.join(map(str, path))}=..." if value == PLACEHOLDER else ""


def _read_suggestions(data: Plugin, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the data set's files suggest, without those that the user has chosen."""
    options, problems = read_options(data, {**likely_options(data), **chosen}, ())
    if problems or options is None:
        return {}  # they are reported with all others
    with _without_lines():
        found = suggested_options(data, options)
        values = {one.name: getattr(found, one.name) for one in attrs.fields(type(found)) if one.name not in chosen}
        suggested = {key: value for key, value in values.items() if value != getattr(options, key)}
        completed_options(data, attrs.evolve(options, **suggested))
    return suggested


def _likely_data(data: Plugin, given: Sequence[Override], *, there: bool) -> Mapping[str, Any]:
    """Return likely options of a data set; with a number of classes if only its folders tell it and are not there, since networks need one."""
    likely = likely_options(data)
    counted = there and cast(DataSetDeclaration, data.declaration).completed is not None
    counted = counted or any(one.keys[-1] == "classes" for one in given)
    if counted or "classes" not in attrs.fields_dict(data.declaration.options):
        return likely
    options, _ = read_options(data, likely, ())
    return {"classes": _CLASSES, **likely} if declared_facts(data, options).classes is None else likely


def _set_values(lines: Sequence[str], given: Sequence[Override], plugins: Mapping[str, Plugin]) -> str:
    """Return the lines as a text, with the values that overrides assign.

    Raises:
        SpecError: no line has such a key.
    """
    names = {f"{table}.name" for table in plugins}
    written, at, table = list(lines), dict[str, int](), ""
    for index, line in enumerate(lines):
        if header := re.match(r"\[([\w.]+)\]", line):
            table = f"{header[1]}."
        elif (line_of := re.match(r"(?:# )?(\w+) = ", line)) and f"{table}{line_of[1]}" not in names:
            at[f"{table}{line_of[1]}"] = index
    files = {f"{table}.options.{key}" for table in plugins for key in path_keys(plugins[table].declaration.options)}
    problems = []
    for override in given:
        key = ".".join(override.keys)
        if key not in at:
            hint = f"plugins are chosen with --{key.partition('.')[0].replace('_', '-')}"
            hint = hint if key in names else f"{suggestion(key, at)}; all other keys are added to the written file"
            problems.append(Problem(message=f"a new spec has no key {key} to set", hint=hint))
            continue
        value = absolute(override.value) if key in files and isinstance(override.value, str) else override.value
        _, _, comment = written[at[key]].rpartition("  # ")
        written[at[key]] = _line(f"{override.keys[-1]} = {shown(value)}", comment)
    if problems:
        raise SpecError(problems)
    return "\n".join(written) + "\n"


def _write_tables(name: str, plugins: Mapping[str, Plugin], of_data: Mapping[str, Any]) -> Iterator[list[str]]:
    yield [
        f"# {plugins['architecture'].name} on {plugins['data'].name}, trained with PETRA. Lines that begin with # are defaults.",
        "# `petra-graph plan FILE` shows stages, memory and speed, `petra-graph run FILE --dry-run` checks everything,",
        "# `petra-graph run FILE` trains. `petra-graph show GROUP/NAME` explains the options of a plugin.",
        f"name = {shown(name)}",
    ]
    yield _write_plugin("architecture", plugins["architecture"])
    yield _write_plugin(
        "data",
        plugins["data"],
        _line("batch = 64", "samples of a micro-batch"),
        _line("# validation = 0.1", "share of the training samples for `best` and early stopping; default: none"),
        _line("# evaluation_batch = 64", "changes no result"),
        _line("# workers = 0", "processes that load samples; changes no result"),
        given=of_data,
    )
    yield [
        "[method]",
        _line('name = "petra"', 'or "backprop", "gpipe", "pipedream", ...'),
        _line(f'schedule = "{_SCHEDULE}"', 'half the delay of the paper\'s "lockstep"; "sequential" has none'),
        _line("accumulation = 4", "micro-batches that are averaged into one update; more: less delay"),
    ]
    with_sgd = plugins["optimizer"].distribution == FIRST_PARTY and plugins["optimizer"].name.endswith("sgd")
    yield _write_plugin(
        "optimizer",
        plugins["optimizer"],
        _line('# clip = { by = "norm", limit = 1.0 }', "of a stage's gradients; default: none"),
        '# late gradients cost "muon" the least',
        given={"lr": 0.1, "weight_decay": 5e-4} if with_sgd else {},
    )
    yield _write_plugin(
        "lr_schedule",
        plugins["lr_schedule"],
        _line("warmup_epochs = 1", "epochs over which the rate rises"),
        *([_line('scaling = "goyal"', "the rate is multiplied by batch * accumulation / 256")] if with_sgd else []),
    )
    yield _write_plugin("loss", plugins["loss"])
    yield [
        "[run]",
        _line("epochs = 10", "passes over the training data"),
        _line("seed = 0", "of every random number"),
        _line("# threads = 1", "of the CPU, for each stage; the last bits depend on it"),
    ]
    yield [
        "[partition]",
        _line('# stages = "per-block"', "or a number, cut so that stages take equal time"),
        _line("# devices = 1", 'or names, as in ["cuda:0", "cuda:1"]'),
    ]
    yield [
        "[checkpoint]",
        _line('every = "1 epoch"', "what `petra-graph run --resume latest` continues from"),
        _line(
            '# best = "test/top1"',
            'a metric whose best checkpoint is kept as well; "validation/top1" with data.validation',
        ),
    ]


def _write_plugin(table: str, plugin: Plugin, *keys: str, given: Mapping[str, Any] | None = None) -> list[str]:
    """Return the table of a plugin: its name and keys, then its options, those with defaults as comments."""
    values = {**small_options(plugin), **(given or {})}
    paths = path_keys(plugin.declaration.options)
    values |= {key: _ROOT for key in paths if key in values}
    lines = [f"[{table}]", _line(f"name = {shown(plugin.name)}", plugin.declaration.summary), *keys]
    options = [_write_option(option, values) for option in list_options(plugin)]
    return [*lines, *([f"[{table}.options]", *options] if options else [])]


def _write_option(option: Option, values: Mapping[str, Any]) -> str:
    unit = f" ({option.unit})" if option.unit else ""
    limits = f"; {option.limits}" if option.limits else ""
    about = f"{option.help}{unit}{limits}"
    if option.name in values:
        return _line(f"{option.name} = {shown(values[option.name])}", about)
    if option.default is None:
        return _line(f"# {option.name} = ...", about)
    return _line(f"# {option.name} = {shown(option.default)}", about)


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}}  # {' '.join(comment.split())}"
