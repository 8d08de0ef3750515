"""`petra-graph check`: whether plugins keep the promises on which training relies, without pytest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click
from attrs import asdict

from petra_graph.cli.options_and_output import echo, json_option, print_json
from petra_graph.errors import PluginError
from petra_graph.registry.registry import discover
from petra_graph.spec.overrides import parse_override
from petra_graph.units import plural


@click.command()
@click.argument("target", metavar="NAME|DISTRIBUTION|MODULE:ATTRIBUTE")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an option of the plugin, as in --set hidden=8; may be repeated. Default: small values where it has no default.",
)
@click.option(
    "--inputs",
    metavar="SHAPES",
    help="Shapes of the streams that a block reads, without the batch, as in 8x6x6,8x6x6. Default: some that it takes.",
)
@json_option
@click.pass_context
def check(ctx: click.Context, target: str, options: Sequence[str], inputs: str | None, as_json: bool) -> None:
    """Check that plugins keep the promises on which training relies, each on the CPU, with small inputs.

    NAME is a plugin of `petra-graph list`, as in rev-basic or blocks/rev-basic; DISTRIBUTION means all plugins of a package;
    MODULE:ATTRIBUTE is a declaration, class or function in a module on Python's path or in this folder; where it does not say its
    kind, write that before it, as in losses/my_module:MyLoss.

    A data set whose files are not here, and a logger whose package is not installed, are not tried. Exit code 4: a promise is
    broken, or a plugin cannot be loaded.
    """
    import torch

    from petra_graph.testing.plugins_to_check import find_targets

    torch.set_num_threads(1)
    given = [parse_override(text) for text in options]
    values: dict[str, Any] = {}
    for one in given:
        if len(one.keys) > 1:
            raise click.BadParameter(f"{one.text!r}: an option is one key", param_hint="--set")
        values[one.keys[0]] = one.value
    results = [_result(found, values, _shapes(inputs)) for found in find_targets(discover(), target)]
    if as_json:
        print_json(results)
    else:
        for result in results:
            echo(_text(result))
        echo(_summary(results))
    if any(result["status"] == "broken" for result in results):
        ctx.exit(PluginError.exit_code)


def _result(found: Any, options: dict[str, Any], inputs: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    from petra_graph.errors import SpecError
    from petra_graph.kinds.declaration_promises import NO_TORCH_REMEDY
    from petra_graph.kinds.examined_promises import examine
    from petra_graph.kinds.promise_report import Outcome
    from petra_graph.testing.likely_trials import in_words, likely_trial

    plugin = found.plugin
    record = {"plugin": found.label, "distribution": plugin.distribution if plugin else "", "trial": "", "outcomes": []}
    if plugin is None:
        return {**record, "status": "broken", "reason": found.fault}
    try:
        trial = likely_trial(plugin, options, inputs)
    except SpecError as error:
        if options:
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


def _shapes(text: str | None) -> list[tuple[int, ...]]:
    if text is None:
        return []
    if not re.fullmatch(r"\d+(x\d+)*(,\d+(x\d+)*)*", text):
        raise click.BadParameter(f"{text!r} is not a list of shapes, as in 8x6x6,8x6x6", param_hint="--inputs")
    return [tuple(int(size) for size in shape.split("x")) for shape in text.split(",")]


def _text(result: dict[str, Any]) -> str:
    head = " of ".join(filter(None, [result["plugin"], result["distribution"]]))
    if result["reason"]:
        return f"{head}: {result['status']}: {result['reason']}"
    kept = sum(outcome["status"] == "kept" for outcome in result["outcomes"])
    lines = [f"{head} ({result['trial']}): {kept} promises kept"]
    others = [outcome for outcome in result["outcomes"] if outcome["status"] in {"broken", "doubtful"}]
    for status in ("broken", "doubtful"):
        count = sum(outcome["status"] == status for outcome in others)
        lines[0] += f", {count} {status}" if count else ""
    for outcome in others:
        doubt = "doubtful: " if outcome["status"] == "doubtful" else ""
        lines.append(f"  {outcome['promise']}: {doubt}{outcome['found']}")
        if outcome["remedy"]:
            lines.append(f"    do: {outcome['remedy']}")
    return "\n".join(lines)


def _summary(results: Sequence[dict[str, Any]]) -> str:
    counts = {
        status: sum(result["status"] == status for result in results) for status in ("kept", "broken", "not tried")
    }
    said = {"kept": "kept all promises", "broken": "did not", "not tried": "not tried"}
    many = plural(len(results), "plugin")
    return f"{many}: " + ", ".join(f"{count} {said[status]}" for status, count in counts.items() if count)
