"""Memory and time of training a model: planned and measured by petra-graph, beside transformers' own modules under autograd.

Bytes are those of live tensors with AdamW's state, once it is there. Times are of all ways in turn, so that what disturbs one disturbs
all, and ratios are of neighbouring turns: wall-clock and processor seconds over those of `checkpointing by layer`, which keeps each
layer's input and runs it again. Coefficients of couplings and values of parameters change neither, so parameters are random; and bytes
do not depend on what matrix products return, so `--no-products` allocates their results as zeros, without computing them.

    python tools/decoder_memory.py smollm2.gguf --context 256 --batch 2 --rounds 5
    python tools/decoder_memory.py smollm2.gguf --context 128 --context 512 --rounds 0 --picture results/decoder_memory.png
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import click
import torch
from attrs import evolve
from petra_graph_hf.configuration import configuration_of
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

import petra_graph
from petra_graph.compiler.memory.pipeline_memory import device_memory
from petra_graph.measure.tally import LiveBytes, storages
from petra_graph.record.run_directory import environment
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepared_run import Prepared, prepare

HERE = Path(__file__).parent.parent
RESULTS = HERE / "results" / "decoder_memory.json"
CONVERTED = {"conversion.coupling": "dual-residual", "conversion.anchors": 3}
LORA = {"finetune.lora.on": ["*_proj"], "finetune.lora.rank": 8}
CHECKPOINTED = "checkpointing by layer"
METHODS: dict[str, dict[str, Any]] = {
    "backprop": {"method.name": "backprop", "partition.stages": 1},
    CHECKPOINTED: {"method.name": "reversible-backprop", "partition.stages": "per-block"},
    "reversible-backprop, converted": {"method.name": "reversible-backprop", "partition.stages": 1, **CONVERTED},
    "petra, converted, two stages": {
        "method.name": "petra",
        "method.schedule": "1f1b",
        "partition.stages": 2,
        **CONVERTED,
    },
    "backprop, adapters": {"method.name": "backprop", "partition.stages": 1, **LORA},
    "reversible-backprop, converted, adapters": {
        "method.name": "reversible-backprop",
        "partition.stages": 1,
        **CONVERTED,
        **LORA,
    },
}
"""In petra-graph. A buffered node in a stage of its own keeps its input and runs again."""
PLAIN = "transformers"
PLAIN_CHECKPOINTED = "transformers, checkpointing by layer"
OPTIMIZERS: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}
"""With the values that petra-graph's have by default; `sgd` needs less memory where several ways take turns."""
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7a5195")
PRODUCTS = (
    torch.ops.aten.mm,
    torch.ops.aten.addmm,
    torch.ops.aten.bmm,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,  # noqa: SLF001  operations have such names
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,  # noqa: SLF001
)
UPDATES = 2
"""The first one makes AdamW's state."""


@click.command()
@click.argument("model", type=click.Path(exists=True, resolve_path=True))
@click.option("--context", "contexts", multiple=True, type=int, default=(256,), show_default=True)
@click.option("--batch", default=1, show_default=True, help="Windows in a micro-batch.")
@click.option("--layers", type=int, help="Of the model's; default: all.")
@click.option("--way", "ways", multiple=True, default=(PLAIN, PLAIN_CHECKPOINTED, *METHODS), help="Default: all.")
@click.option("--optimizer", default="adamw", show_default=True, type=click.Choice(list(OPTIMIZERS)))
@click.option("--rounds", default=3, show_default=True, help="Of timing; 0: none.")
@click.option("--threads", default=2, show_default=True)
@click.option("--bytes/--no-bytes", "sizes", default=True, show_default=True, help="Measure bytes, too.")
@click.option("--products/--no-products", default=True, show_default=True, help="Compute matrix products for bytes.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="PNG of memory by context, of all that the result has."
)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(
    *,
    model: str,
    contexts: tuple[int, ...],
    batch: int,
    layers: int | None,
    ways: tuple[str, ...],
    optimizer: str,
    rounds: int,
    threads: int,
    sizes: bool,
    products: bool,
    picture: Path | None,
    output: Path,
) -> None:
    torch.set_num_threads(threads)
    if not products:
        LiveBytes.call = staticmethod(allocated)  # type: ignore[assignment,method-assign]
    config = dict(configuration_of(model)) | {"tie_word_embeddings": False}
    if layers is not None:
        config["num_hidden_layers"] = layers
    for context in contexts:
        common = {"context": context, "batch": batch, "layers": config["num_hidden_layers"]}
        common |= {"threads": threads, "optimizer": optimizer}
        setting = (config, context, batch, optimizer)
        for way in ways if sizes else ():
            row = of_petra_graph(*setting, METHODS[way]) if way in METHODS else of_transformers(*setting, way)
            keep({**common, "way": way, "products": products, **row}, config, output)
            gc.collect()
        if rounds:
            timed = {way: update_of(*setting, way) for way in ways}
            for way, row in times(timed, rounds, batch * context).items():
                keep({**common, "way": way, **row}, config, output)
            del timed
    if picture is not None:
        draw(json.loads(output.read_text())["rows"], picture)


Update = Callable[[], None]


def keep(row: dict[str, Any], config: Mapping[str, Any], output: Path) -> None:
    """Write a row, over what is known of the same way and setting."""
    click.echo(json.dumps(row))
    rows = json.loads(output.read_text())["rows"] if output.exists() else []
    same = ("way", "context", "batch", "layers", "threads", "optimizer")
    known = next((one for one in rows if all(one[key] == row[key] for key in same)), None)
    if known is None:
        rows.append(row)
    else:
        known.update(row)
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.parent.mkdir(exist_ok=True)
    found = {"date": now, "config": dict(config), "rows": rows, "environment": setting}
    output.write_text(json.dumps(found, indent=1) + "\n")


def times(updates: Mapping[str, Update], rounds: int, tokens: int) -> dict[str, dict[str, Any]]:
    """Return each way's medians of wall-clock and processor time, and of their ratios to checkpointing in the same round."""
    clocks = {"wall-clock": perf_counter, "processor": process_time}
    found: dict[str, dict[str, list[float]]] = {way: {name: [] for name in clocks} for way in updates}
    for number in range(rounds + 1):
        for way, update in updates.items():
            begun = {name: clock() for name, clock in clocks.items()}
            update()
            for name, clock in clocks.items():
                found[way][name].append(clock() - begun[name])
        click.echo(f"round {number} of {rounds}", err=True)
    rows: dict[str, dict[str, Any]] = {}
    for way, of_clock in found.items():
        rows[way] = {"rounds": rounds}
        for name, seconds in of_clock.items():
            rows[way][f"{name} milliseconds a token"] = round(1000 * median(seconds[1:]) / tokens, 3)
            for other in (CHECKPOINTED, PLAIN_CHECKPOINTED):
                if other in found:
                    ratios = [own / beside for own, beside in zip(seconds, found[other][name], strict=True)]
                    rows[way][f"{name} / {other}"] = [round(one, 3) for one in ratios[1:]]
    return rows


def update_of(config: Mapping[str, Any], context: int, batch: int, optimizer: str, way: str) -> Update:
    """Return an update of a way."""
    if way not in METHODS:
        return partial(transformers_update(config, context, batch, optimizer, checkpointed=way != PLAIN), None)
    ready = prepared(config, context, batch, optimizer, METHODS[way])
    network = tools()
    runtime, data = network.runtime_of(ready), network.training_data(ready, 1)
    begun = iter(range(0, sys.maxsize, len(data)))

    def update() -> None:
        first = next(begun)
        runtime.train(data, range(first, first + len(data)), lambda _: None)

    return update


def transformers_update(
    config: Mapping[str, Any], context: int, batch: int, optimizer: str, *, checkpointed: bool
) -> Callable[[LiveBytes | None], None]:
    """Return a function that trains transformers' model: one update, or those that make the most bytes."""
    values = dict(config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values, use_cache=False))
    if checkpointed:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # the name that all of 5 has
            model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    made = OPTIMIZERS[optimizer](model.parameters(), lr=1e-5)
    tokens = torch.randint(values["vocab_size"], (batch, context + 1))

    def update(live: LiveBytes | None) -> None:
        if live is not None:
            for storage in storages([*model.parameters(), *model.buffers(), tokens]):
                live.count(storage)
        for _ in range(1 if live is None else UPDATES):
            logits = model(tokens[:, :-1]).logits.transpose(1, 2)
            torch.autograd.backward(torch.nn.functional.cross_entropy(logits, tokens[:, 1:]))
            del logits
            made.step()
            made.zero_grad()

    return update


def of_transformers(config: Mapping[str, Any], context: int, batch: int, optimizer: str, way: str) -> dict[str, Any]:
    """Return the most bytes of some updates."""
    update = transformers_update(config, context, batch, optimizer, checkpointed=way != PLAIN)
    with LiveBytes() as live:
        update(live)
    return {"measured bytes": [int(live.peak)]}


def allocated(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operation returns; of a matrix product, zeros."""
    if func.overloadpacket not in PRODUCTS:
        return func(*args, **kwargs)
    shapes = tree_map_only(torch.Tensor, lambda one: one.to("meta"), (args, kwargs))
    with torch.device("meta"):
        found = func(*shapes[0], **shapes[1])
    return tree_map_only(
        torch.Tensor,
        lambda one: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cpu").zero_(),
        found,
    )


def tools() -> Any:
    """Return what the core's benchmarks share."""
    sys.path.insert(0, str(HERE.parent.parent / "tools" / "bench"))
    import network

    return network


def prepared(
    config: Mapping[str, Any], context: int, batch: int, optimizer: str, method: Mapping[str, Any]
) -> Prepared:
    """Prepare a run on random tokens."""
    windows = {
        "dtype": "int64",
        "levels": config["vocab_size"],
        "classes": config["vocab_size"],
        "train": 32,
        "test": 2,
    }
    made = petra_graph.make_spec(
        name="memory",
        architecture={"name": "hf-decoder", "options": {"config": dict(config)}},
        optimizer={"name": optimizer, "options": {"lr": 1e-5}},
        data={
            "name": "random",
            "batch": batch,
            "options": {**windows, "shape": [context], "target_shape": [context]},
        },
        run={"threads": torch.get_num_threads()},
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "memory.toml"
        file.write_text(dump(made))
        changes = {"method.schedule": "sequential", **method}
        return prepare(str(file), [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def of_petra_graph(
    config: Mapping[str, Any], context: int, batch: int, optimizer: str, method: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the plan of the network counts and what it holds on one device; several stages each on a device of its own."""
    ready = prepared(config, context, batch, optimizer, method)
    network, several = tools(), method["partition.stages"] == 2
    programs = [evolve(program, device=f"cpu:{program.index if several else 0}") for program in ready.programs]
    micro_batches = UPDATES * max(program.depth for program in programs)
    found = device_memory(programs, network.costs_of(ready), policy="arrival", micro_batches=micro_batches)
    measured = network.device_peaks(ready, programs, micro_batches, "arrival")
    planned = {device: one.total for device, one in found.items()}
    return {
        "planned bytes": list(planned.values()),
        "measured bytes": list(measured.values()),
        "planned / measured": [round(planned[device] / measured[device], 4) for device in planned],
    }


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the measured bytes by context, and dots for the planned ones, of the device that holds most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=120)
    adapted = [way for way in METHODS if "adapters" in way]
    kinds = {"all parameters trained": [way for way in METHODS if way not in adapted], "frozen, with adapters": adapted}
    for axis, (title, ways) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
        for way, colour in zip(ways, COLOURS, strict=False):
            own = [
                row
                for row in rows
                if row["way"] == way
                and row["batch"] == 1
                and row["optimizer"] == "adamw"
                and row["layers"] == rows[0]["layers"]
            ]
            own.sort(key=lambda row: row["context"])
            contexts = [row["context"] for row in own]
            axis.plot(contexts, [max(row["measured bytes"]) / 2**30 for row in own], color=colour, label=way)
            axis.plot(contexts, [max(row["planned bytes"]) / 2**30 for row in own], "o", color=colour, markersize=4)
        axis.set(
            title=title,
            xlabel="context, tokens",
            ylabel="GiB: lines measured, dots planned",
            xscale="log",
            ylim=(0, None),
        )
        ticks = sorted({row["context"] for row in rows})
        axis.set_xticks(ticks, [str(one) for one in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, facecolor="white")


if __name__ == "__main__":
    main()
