"""What the planner finds for RevNet50 and a GPT on 4, 8 and 64 devices, alike and unlike, and how long it takes.

    python tools/bench/plans.py --before OTHER/CHECKOUT --write

Each case is one `petra-graph plan`, a process of its own, whose seconds include two for importing torch. With `--before`, another checkout
plans each case as well, in turns. The GPT needs plugins/petra-graph-text, or is left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import click
from network import save

ROOT = Path(__file__).parents[2]
UNLIKE = ("t4", "rtx4090", "a100-40gb", "h100")
KINDS: Mapping[str, Sequence[str]] = {"alike": ("a100-40gb",), "unlike": UNLIKE}
GPT = (
    "plugins/petra-graph-text/specs/gpt_tinyshakespeare.toml",
    "architecture.options={layers = 62, heads = 16, width = 1024}",
    "data.options.context=512",
)
NETWORKS: Mapping[str, tuple[Sequence[str], int]] = {
    "RevNet50": (("specs/revnet50_imagenet.toml",), 18),
    "GPT of 62 blocks": (GPT, 64),
}


@click.command()
@click.option("--case", "wanted", multiple=True, help="Cases whose names contain this; default: all.")
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout of another version, which plans the cases, too.",
)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(wanted: Sequence[str], before: Path | None, write: bool) -> None:
    """Plan each case, and print its tick, its answer about the cut and the seconds that it took."""
    checkouts = {"now": ROOT} if before is None else {"before": before.resolve(), "now": ROOT}
    results = {}
    for name, words in cases():
        if not wanted or any(word in name for word in wanted):
            results[name] = {label: planned(words, checkout) for label, checkout in checkouts.items()}
            click.echo(f"{name}: {json.dumps(results[name])}")
    if write:
        click.echo(f"written: {save('plans', {'results': results})}", err=True)


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of plans by name."""
    for (network, ((spec, *settings), nodes)), devices, (name, kinds) in product(
        NETWORKS.items(), (4, 8, 64), KINDS.items()
    ):
        if network != "RevNet50" and find_spec("petra_graph_text") is None:
            continue
        on = [
            f"partition.stages={min(devices, nodes)}",
            f"partition.devices={devices}",
            f"partition.device_type={json.dumps(list(islice(cycle(kinds), devices)))}",
            "method.schedule=auto",
        ]
        words = [word for text in (*settings, *on) for word in ("--set", text)]
        yield f"{network}, {devices} devices, {name}", [spec, *words]


def planned(words: Sequence[str], checkout: Path) -> dict[str, Any]:
    """Return what a checkout's plan says."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "petra_graph", "plan", *words, "--json"]
    path = os.pathsep.join(map(str, (checkout, checkout / "plugins/petra-graph-text/src")))
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=checkout, env=os.environ | {"PYTHONPATH": path}
    )
    seconds = round(time.perf_counter() - began, 1)
    if ended.returncode:
        return {"exit code": ended.returncode, "says": ended.stderr.strip().splitlines()[0], "seconds": seconds}
    plan = json.loads(ended.stdout)
    cut = next((text for text in plan["assumptions"] if re.search("^the cut: ", text)), "")
    return {"tick, ms": round(1000 * plan["timing"]["tick_seconds"], 3), "cut": cut, "seconds": seconds}


if __name__ == "__main__":
    main()
