"""Compare the plans of the working tree with those of commit 919c694, number by number.

    python tools/frozen_plans.py compare --share 12
    python tools/frozen_plans.py compare --only "quickstart petra"
    python tools/frozen_plans.py write

frozen_plans.json.xz has, for specifications x methods x devices, the settings and the document of `petra-graph plan --json`
without its texts and its timeline. `compare` plans the cases again and says, for each number by its name, in how many cases it
differs and by how much, which numbers are gone, and which cases are refused now or no longer. `--share N` takes every
N-th case. A case takes 1 to 3 s of one core, all together about half an hour. The exit code is 1 where anything differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.main import main as petra_graph

ROOT = Path(__file__).parents[1]
FROZEN = Path(__file__).with_name("frozen_plans.json.xz")
SPECS = (
    "quickstart revnet18_cifar10 resnet18_cifar10 revnet50_imagenet revnet18_imagenet32 accumulation bfloat16 keep_auto "
    "pipedream text corrected own_block regression gpt_tinyshakespeare vit_fashion_mnist"
)
METHODS = "backprop reversible-backprop gpipe 1f1b-flush pipedream dsp delayed-reconstructed petra"
FLUSHED = METHODS.split()[:4]
DEVICES = {
    "one": "devices = 1, device_type = 'cpu'",
    "four": "devices = 4, stages = 4, device_type = 'h100'",
    "eight": "devices = 8, stages = 8, device_type = 'cpu'",
    "unlike": "devices = 4, stages = 4, device_type = ['t4', 'h100', 'v100', 'a100-40gb']",
    "shared": "devices = 2, stages = 6, device_type = 'cpu'",
    "replicas": "devices = 4, stages = 4, replicas = 2, device_type = 'h100'",
    "auto": "devices = 4, stages = 'auto', device_type = 'cpu', link_latency = 1e-3",
    "limited": "devices = 4, stages = 4, device_type = 'cpu', memory = '{bytes}B'",
    "keep": "devices = 4, stages = 4, device_type = 'cpu', memory = '{bytes}B'",
}
"""`limited` and `keep` have 85 % of the memory that `four` needs; `auto` has the depths, and `keep` what nodes keep, from the plan."""
TEXTS = {"version", "warnings", "assumptions", "timeline", "delay_aware", "certainty"}


def settings(method: str, devices: str, accumulation: int, peak: int) -> list[str]:
    """Return what a case sets, by whole tables, so that nothing of a specification's own stays."""
    more = ", schedule = 'auto'" * (devices == "auto" and method not in FLUSHED) + ", keep = 'auto'" * (
        devices == "keep"
    )
    placed = DEVICES[devices].format(bytes=int(peak * 0.85))
    return [f"method={{ name = '{method}', accumulation = {accumulation}{more} }}", f"partition={{ {placed} }}"]


def planned(spec: str, own: list[str]) -> dict[str, Any] | None:
    """Return a plan's document without its texts; None where it is refused."""
    files = (path for place in ("specs", "plugins") for path in (ROOT / place).glob(f"**/{spec}.toml"))
    own = [*own, *["data.options.vocabulary=65"] * (spec == "gpt_tinyshakespeare")]
    if own and "schedule" not in own[0] and not any(f"'{method}'" in own[0] for method in FLUSHED):
        own.append("method.schedule=lockstep")  # the default of 919c694
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = petra_graph(
            ["plan", str(next(files, spec)), "--json", *(word for text in own for word in ("--set", text))]
        )
    document = json.loads(said.getvalue()) if not code else None
    return document and {key: value for key, value in document.items() if key not in TEXTS}


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a document by its path."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(item, f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}".strip("."))
    else:
        yield path, value


@click.group()
def main() -> None:
    """Write plans, or compare them."""


@main.command()
def write() -> None:
    """Plan every case, and write all of them into the file."""
    cases: dict[str, Any] = {}
    for spec in SPECS.split():
        accumulation = (planned(spec, []) or {"accumulation": 1})["accumulation"]
        for method in METHODS.split():
            peak = 0
            for devices, placed in DEVICES.items():
                own = settings(method, devices, accumulation, peak)
                document = planned(spec, own) if peak or "{bytes}" not in placed else None
                cases[f"{spec} {method} {devices}"] = {"spec": spec, "settings": own, "document": document}
                if devices == "four" and document:
                    peak = max(device["bytes"]["total"] for device in document["devices"])
        click.echo(spec)
    FROZEN.write_bytes(lzma.compress(json.dumps(cases).encode(), preset=9))


@main.command()
@click.option("--only", default="", help="Only cases with this text in their names, as in 'quickstart petra four'.")
@click.option("--share", default=1, show_default=True, help="Only each N-th of them.")
def compare(only: str, share: int) -> None:
    """Plan cases again, and say what differs."""
    cases = json.loads(lzma.decompress(FROZEN.read_bytes()))
    chosen = [name for name in cases if only in name][::share]
    differ: dict[str, dict[str, float]] = defaultdict(dict)
    refused, gone = [], set()
    for name in chosen:
        case = cases[name]
        now = planned(case["spec"], case["settings"])
        if (now is None) != (case["document"] is None):
            refused.append(f"{name}: {'refused now' if now is None else 'no longer refused'}")
            continue
        there = dict(numbers(now))
        for path, old in numbers(case["document"]):
            key, new = re.sub(r"\[\d+\]", "", path), there.get(path, ...)
            if new is ...:
                gone.add(key)
            elif new != old:
                amounts = isinstance(old, int | float) and isinstance(new, int | float)
                by = (new - old) / (abs(old) or 1.0) if amounts else 1.0
                differ[key][name] = max(by, differ[key].get(name, 0.0), key=abs)
    for key, found in sorted(differ.items()):
        worst = max(found, key=lambda name: abs(found[name]))
        least, most = min(found.values()), max(found.values())
        click.echo(f"{key} differs in {len(found)} cases, by {least:+.3g} to {most:+.3g} of itself, most in {worst!r}")
    click.echo("\n".join([*(f"{key} is gone" for key in sorted(gone)), *refused, f"{len(chosen)} cases compared"]))
    sys.exit(bool(differ or refused))


if __name__ == "__main__":
    main()
