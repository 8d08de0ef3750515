"""`petra-graph check`: whether plugins keep the promises on which training relies, without pytest."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from petra_graph.cli.options_and_output import echo, json_option, print_json

if TYPE_CHECKING:
    from petra_graph.kinds.plugin_kind import PluginKind
    from petra_graph.plugins import DataFacts
    from petra_graph.registry.registry import Registry
    from petra_graph_conformance.plugins_to_check import Target

TARGETS = ("classes", "last-classes", "values", "numbers", "binary")
"""The names of `outputs_and_targets.TARGETS`, which needs torch."""
FACTS = ("shape", "dtype", "classes", "target_shape", "target_dtype", "mean", "std", "class_names")
"""The fields of DataFacts."""


class _Shapes(click.ParamType[list[tuple[int, ...]]]):
    name = "shapes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[tuple[int, ...]]:
        if not re.fullmatch(r"\d+(x\d+)*(,\d+(x\d+)*)*", value):
            self.fail(f"{value!r} is not a list of shapes, as in 8x6x6,8x6x6", param, ctx)
        return [tuple(int(size) for size in shape.split("x")) for shape in value.split(",")]


@click.command(short_help="Check that plugins keep their promises.")
@click.argument("names", nargs=-1, required=True, metavar="NAME|DISTRIBUTION|MODULE:ATTRIBUTE...")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an option of the plugin, as in --set hidden=8; may be repeated. Required options default to small values.",
)
@click.option(
    "--inputs",
    metavar="SHAPES",
    type=_Shapes(),
    help="Shapes of the streams that a block reads, without the batch, as in 8x6x6,8x6x6. Default: some that it accepts.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=1),
    help="Let a block read tokens, integers below N. Default: real numbers, or tokens if it does not accept those.",
)
@click.option("--output", metavar="SHAPE", type=_Shapes(), help="Shape of the outputs that a loss reads, as in 5x8x6.")
@click.option(
    "--targets",
    type=click.Choice(TARGETS),
    help="What a loss compares outputs with: a class for each sample, token or pixel of outputs [classes, ...] or, with "
    "last-classes, [..., classes]; values like the outputs; numbers for outputs [1, ...]; 0 or 1 like the outputs.",
)
@click.option(
    "--facts",
    multiple=True,
    metavar="KEY=VALUE",
    help="What to tell an architecture about the data, as in --facts 'shape=[3,48,64]' --facts classes=5; may be repeated. "
    f"Keys: {', '.join(FACTS)}.",
)
@json_option
@click.pass_context
def check(ctx: click.Context, /, names: Sequence[str], options: Sequence[str], as_json: bool, **given: Any) -> None:
    """Check that plugins keep the promises that training relies on, on the CPU and with small inputs.

    NAME is a plugin of `petra-graph list`, as in rev-basic or blocks/rev-basic; DISTRIBUTION means all plugins of a package;
    MODULE:ATTRIBUTE is a declaration, class or function in a module on Python's path or in this folder; if it does not say its
    kind, write the kind in front, as in losses/my_module:MyLoss. Several are checked one after another, with the same options.

    A plugin that accepts none of the guessed inputs is skipped, and so is a data set whose files are not here, or a logger whose
    package is not installed. Exit code 4: a promise is broken, or a plugin cannot be loaded.
    """
    import torch

    from petra_graph.errors import PluginError
    from petra_graph.registry.registry import discover
    from petra_graph_conformance.outputs_and_targets import TARGETS as DRAWN
    from petra_graph_conformance.plugins_to_check import find_targets

    torch.set_num_threads(1)
    values, facts = _values(options, "--set"), _values(given.pop("facts"), "--facts")
    settings = {name: value for name, value in given.items() if value is not None}
    if facts:
        settings["facts"] = _facts(facts)
    if "output" in settings:
        settings["output"], *more = settings["output"]
        if more:
            raise click.BadParameter("an output is one shape, as in 5x8x6", param_hint="--output")
    if "targets" in settings:
        settings["targets"] = DRAWN[settings["targets"]]
    with redirect_stdout(sys.stderr):  # plugins may print; results alone go there
        registry = discover()
        targets = [found for name in names for found in find_targets(registry, name)]
        _expect_taken(registry, settings, [found.plugin.kind for found in targets if found.plugin is not None])
        results = [_result(found, values, settings) for found in targets]
    if as_json:
        print_json(results)
    else:
        for result in results:
            echo(_text(result))
        echo(_summary(results))
    if any(result["status"] == "broken" for result in results):
        ctx.exit(PluginError.exit_code)


def _values(texts: Sequence[str], option: str) -> dict[str, Any]:
    from petra_graph.spec.overrides import parse_override

    values: dict[str, Any] = {}
    for one in map(parse_override, texts):
        if len(one.keys) > 1:
            raise click.BadParameter(f"{one.text!r}: an option is one key", param_hint=option)
        values[one.keys[0]] = one.value
    return values


def _facts(values: dict[str, Any]) -> DataFacts:
    from petra_graph.errors import SpecError
    from petra_graph.plugins import DataFacts
    from petra_graph.spec.strict_values import structure_as

    given = {key: tuple(one) if isinstance(one, list) else one for key, one in values.items()}
    facts, problems = structure_as(DataFacts, given, ("facts",))
    if facts is None:
        raise SpecError(problems)
    for fault in facts.faults():
        raise click.BadParameter(f"samples with these facts {fault}", param_hint="--facts")
    return facts


def _expect_taken(registry: Registry, settings: Mapping[str, Any], kinds: Sequence[PluginKind]) -> None:
    """Refuse a setting that no kind among the targets has."""
    from petra_graph.units import listed
    from petra_graph_conformance.all_checks import checks_of

    for name in settings:
        having = [kind.nouns for kind in registry.kinds if name in checks_of(kind).settings]
        if kinds and not any(name in checks_of(kind).settings for kind in kinds):
            others = listed(dict.fromkeys(kind.nouns for kind in kinds))
            raise click.BadParameter(
                f"it is a setting of {' and '.join(having)}, not of {others}", param_hint=f"--{name}"
            )


def _result(found: Target, options: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    from attrs import asdict

    from petra_graph.errors import PluginError, SpecError
    from petra_graph_conformance.examined_promises import examine
    from petra_graph_conformance.importers_of_torch import NO_TORCH_REMEDY
    from petra_graph_conformance.likely_trials import NoGuessFits, in_words, likely_trial
    from petra_graph_conformance.promise_report import Outcome

    plugin = found.plugin
    record = {"plugin": found.label, "distribution": plugin.distribution if plugin else "", "trial": "", "outcomes": []}
    if plugin is None:
        return {**record, "status": "broken", "reason": found.fault}
    try:
        trial = likely_trial(plugin, options, settings)
    except SpecError as error:
        if options and not isinstance(error, NoGuessFits):
            raise
        return {**record, "status": "not tried", "reason": in_words(error)}
    except PluginError as error:
        return {**record, "status": "broken", "reason": in_words(error)}
    report = examine(trial)
    status = "kept" if report.kept else "broken"
    outcomes = report.record()["outcomes"]
    if found.imports_torch:
        text = f"importing it imports torch, in {found.imports_torch}: `validate` and `list` wait for it"
        doubt = Outcome(promise="declaration", status="doubtful", found=text, remedy=NO_TORCH_REMEDY)
        outcomes = [asdict(doubt), *outcomes]
    return {**record, "status": status, "reason": "", "trial": report.trial, "outcomes": outcomes}


def _text(result: dict[str, Any]) -> str:
    from petra_graph_conformance.promise_report import Outcome, findings

    head = " of ".join(filter(None, [result["plugin"], result["distribution"]]))
    if result["reason"]:
        return f"{head}: {result['status']}: {result['reason']}"
    kept = sum(outcome["status"] == "kept" for outcome in result["outcomes"])
    lines = [f"{head} ({result['trial']}): {kept} promises kept"]
    others = [outcome for outcome in result["outcomes"] if outcome["status"] in {"broken", "doubtful"}]
    for status in ("broken", "doubtful"):
        count = sum(outcome["status"] == status for outcome in others)
        lines[0] += f", {count} {status}" if count else ""
    return "\n".join([*lines, *(f"  {text}" for text in findings(Outcome(**outcome) for outcome in others))])


def _summary(results: Sequence[dict[str, Any]]) -> str:
    from petra_graph.units import plural

    said = {"kept": "kept all promises", "doubtful": "doubtful", "broken": "did not", "not tried": "not tried"}
    counts = Counter(_standing(result) for result in results)
    parts = [f"{counts[status]} {words}" for status, words in said.items() if counts[status]]
    return f"{plural(len(results), 'plugin')}: {', '.join(parts)}"


def _standing(result: dict[str, Any]) -> str:
    doubtful = any(outcome["status"] == "doubtful" for outcome in result["outcomes"])
    return "doubtful" if doubtful and result["status"] == "kept" else str(result["status"])
