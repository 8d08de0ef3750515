"""Memory and time of training a model: planned and measured by petra-graph, beside transformers' own modules under autograd.

Bytes are those of live tensors with AdamW's state, in the third update. Seconds are the medians of some updates, all ways
in turn, so that what disturbs one disturbs all. It needs a checkout of petra-graph around this package.

    python tools/decoder_memory.py smollm2.gguf --context 256 --context 512
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import torch
from attrs import evolve
from petra_graph_hf.configuration import configuration_of
from transformers import AutoConfig, AutoModelForCausalLM

import petra_graph
from petra_graph.compiler.memory.pipeline_memory import device_memory
from petra_graph.measure.tally import LiveBytes, storages
from petra_graph.record.run_directory import environment
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepared_run import prepare

HERE = Path(__file__).parent.parent
RESULTS = HERE / "results" / "decoder_memory.json"
METHODS: dict[str, dict[str, Any]] = {
    "backprop": {"method.name": "backprop", "partition.stages": 1},
    "checkpointing by layer": {"method.name": "reversible-backprop", "partition.stages": "per-block"},
}
"""In petra-graph. A buffered node in a stage of its own keeps its input and runs again; a converted network would have its rows here."""
UPDATES = 3


@click.command()
@click.argument("model", type=click.Path(exists=True, resolve_path=True))
@click.option("--context", "contexts", multiple=True, type=int, default=(256,), show_default=True)
@click.option("--layers", type=int, help="Of the model's; default: all.")
@click.option("--rounds", default=3, show_default=True, help="Of timing.")
@click.option("--threads", default=2, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(*, model: str, contexts: tuple[int, ...], layers: int | None, rounds: int, threads: int, output: Path) -> None:
    torch.set_num_threads(threads)
    config = dict(configuration_of(model)) | {"tie_word_embeddings": False}
    if layers is not None:
        config["num_hidden_layers"] = layers
    rows = []
    for context in contexts:
        updates = {
            "transformers": of_transformers(config, context, checkpointed=False),
            "transformers, checkpointing by layer": of_transformers(config, context, checkpointed=True),
        }
        found: dict[str, dict[str, Any]] = {name: {"measured bytes": peak(update)} for name, update in updates.items()}
        seconds: dict[str, list[float]] = {name: [] for name in updates}
        for _ in range(rounds):
            for name, update in updates.items():
                seconds[name].append(timed(update))
        for name, times in seconds.items():
            found[name]["milliseconds a token"] = 1000 * median(times) / context
        del updates
        for name, method in METHODS.items():
            found[name] = of_petra_graph(config, context, method, rounds)
        for name, row in found.items():
            rows.append({"way": name, "context": context, "layers": config["num_hidden_layers"], **row})
            click.echo(rows[-1])
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.parent.mkdir(exist_ok=True)
    output.write_text(
        json.dumps({"date": now, "config": config, "rows": rows, "environment": setting}, indent=1) + "\n"
    )


Update = Callable[[LiveBytes | None], None]


def of_transformers(config: dict[str, Any], context: int, *, checkpointed: bool) -> Update:
    """Return an update of transformers' model with AdamW."""
    values = dict(config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values, use_cache=False))
    if checkpointed:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # the name that all of 5 has
            model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(values["vocab_size"], (1, context + 1))

    def update(live: LiveBytes | None) -> None:
        if live is not None:
            for storage in storages([*model.parameters(), *model.buffers(), tokens]):
                live.count(storage)
        logits = model(tokens[:, :-1]).logits.transpose(1, 2)
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, tokens[:, 1:]))
        del logits
        optimizer.step()
        optimizer.zero_grad()

    return update


def peak(update: Update) -> int:
    """Return the most bytes of some updates."""
    with LiveBytes() as live:
        for _ in range(UPDATES):
            update(live)
    return int(live.peak)


def timed(update: Update) -> float:
    begun = perf_counter()
    update(None)
    return perf_counter() - begun


def of_petra_graph(config: dict[str, Any], context: int, method: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return what the plan of the network counts, and what its stages hold and take, all on this processor."""
    sys.path.insert(0, str(HERE.parent.parent / "tools" / "bench"))
    from network import costs_of, device_peaks, runtime_of, training_data

    windows = {"dtype": "int64", "levels": config["vocab_size"], "classes": config["vocab_size"], "train": 8, "test": 2}
    made = petra_graph.make_spec(
        name="memory",
        architecture={"name": "hf-decoder", "options": {"config": config}},
        optimizer={"name": "adamw", "options": {"lr": 1e-5}},
        data={"name": "random", "batch": 1, "options": {**windows, "shape": [context], "target_shape": [context]}},
        run={"threads": torch.get_num_threads(), "self_check": False},
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "memory.toml"
        file.write_text(dump(made))
        changes = {"method.schedule": "sequential", **method}
        ready = prepare(str(file), [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    programs = [evolve(program, device="cpu") for program in ready.programs]
    planned = device_memory(programs, costs_of(ready), policy="arrival", micro_batches=UPDATES)["cpu"].total
    measured = device_peaks(ready, programs, UPDATES, "arrival")["cpu"]
    runtime, times = runtime_of(ready), []
    for micro_batch in range(rounds + 1):
        begun = perf_counter()
        runtime.train(training_data(ready, micro_batch + 1)[-1:], range(micro_batch, micro_batch + 1), lambda _: None)
        times.append(perf_counter() - begun)
    return {
        "planned bytes": planned,
        "measured bytes": measured,
        "planned / measured": round(planned / measured, 4),
        "milliseconds a token": 1000 * median(times[1:]) / context,
    }


if __name__ == "__main__":
    main()
