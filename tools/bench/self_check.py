"""What the self-check costs at the start of a run: seconds beside those of the rest of the preparation, and a block.

The first party's own plugins are not tried. So that RevNets say something of a network of other packages' blocks, every plugin is
tried in a second measurement of each network, as if it were another package's. The transformer is the GPT of the package
petra-graph-transformers, which must be installed, on random tokens: 12 blocks of 12 heads, width 768 as GPT-2 has it.

Networks are prepared in turns, with the self-check and without it. Seconds are the processor's, on one thread, of the best round.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import click
import torch
from network import save
from petra_graph_conformance import plugins_of_run
from petra_graph_conformance.verdicts import CACHE

from petra_graph.training.prepared_run import prepare

ROOT = Path(__file__).parents[2]
GPT = """
name = "gpt"
[architecture]
name = "gpt"
options = {{ layers = 12, heads = 12, width = 768 }}
[loss]
name = "token-cross-entropy"
[data]
name = "text-characters"
batch = 2
options = {{ root = "{text}", vocabulary = 26, context = {context}, samples = 64 }}
"""
IMAGES = 'data={name = "random", batch = 2, options = {shape = [3, 224, 224], dtype = "uint8", classes = 1000, train = 8, test = 8}}'


@contextmanager
def networks(context: int) -> Iterator[dict[str, tuple[str, list[str]]]]:
    """Yield specifications and what to set in them, by name."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text("".join(chr(ord("a") + at % 26) for at in range(40 * context)))
        gpt = Path(folder, "gpt.toml")
        gpt.write_text(GPT.format(text=text, context=context))
        yield {
            "quickstart": (str(ROOT / "specs" / "quickstart.toml"), []),
            "RevNet50, 224x224": (str(ROOT / "specs" / "revnet50_imagenet.toml"), [IMAGES]),
            f"GPT, 12 blocks, width 768, context {context}": (str(gpt), []),
        }


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--context", default=256, show_default=True, help="Tokens that the transformer reads.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(rounds: int, context: int, write: bool) -> None:
    torch.set_num_threads(1)
    found = {}
    with networks(context) as specs:
        for name, (spec, settings) in specs.items():
            prepare(spec, settings)  # imports, and what torch does once
            found[name] = _measured(spec, settings, rounds)
    result = {"rounds": rounds, "threads": 1, "networks": found}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('self_check', result)}", err=True)


def _measured(spec: str, settings: list[str], rounds: int) -> dict[str, float | int | dict[str, float | int]]:
    ways = {"without": ["run.self_check=false"], "as it is": [], "all plugins": []}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for way, more in ways.items():
            foreign = (lambda _: True) if way == "all plugins" else plugins_of_run.is_foreign
            with (
                tempfile.TemporaryDirectory() as cache,  # no verdict is known
                patch.dict(os.environ, {CACHE: cache}),
                patch.object(plugins_of_run, "is_foreign", foreign),
            ):
                began = time.process_time()
                ready = prepare(spec, [*settings, *more])
                best[way] = min(best[way], time.process_time() - began)
    shown = ["as it is", "all plugins"]
    nodes = ready.network.graph.nodes.values()
    kinds = {(repr(node.plugin), repr(node.options), ready.network.shapes[node.name].inputs) for node in nodes}
    return {
        "blocks": len(nodes),
        "different blocks": len(kinds),
        "seconds of the preparation without it": round(best["without"], 2),
        **{way: _cost(best[way], best["without"], len(nodes)) for way in shown},
    }


def _cost(seconds: float, without: float, blocks: int) -> dict[str, float | int]:
    extra = max(0.0, seconds - without)
    return {
        "seconds": round(extra, 2),
        "share of the start": round(extra / seconds, 3),
        "seconds a block": round(extra / blocks, 3),
    }


if __name__ == "__main__":
    main()
