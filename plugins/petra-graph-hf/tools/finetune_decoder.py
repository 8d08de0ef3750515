"""A pretrained model before and after some minutes of training on a text: loss, bits a byte, a sample; and exported for transformers.

Before the training its logits are compared with those of transformers over the same weights. Afterwards the network is exported,
opened by plain transformers and asked for a sample. A training that was stopped continues when the command is given again.

    petra-graph-hf tokenizer smollm2.gguf tokenizer.json
    python tools/finetune_decoder.py smollm2.gguf tokenizer.json input.txt --windows 240
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch
from petra_graph_hf.configuration import configuration_of
from petra_graph_hf.export import export_folder
from petra_graph_hf.names import of_node
from petra_graph_hf.weights import read
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

import petra_graph
from petra_graph.record.run_directory import environment

HERE = Path(__file__).parent.parent
SPEC = HERE / "specs" / "smollm2_tinyshakespeare.toml"
RESULTS = HERE / "results" / "finetune_decoder.json"
CONVERTED: dict[str, Any] = {
    "conversion.coupling": "dual-residual",
    "conversion.alpha": 0.9,
    "conversion.beta": 0.1,
    "conversion.anchors": 3,
}
METHODS: dict[str, dict[str, Any]] = {
    "backprop": {},
    "reversible-backprop": {"method.name": "reversible-backprop", **CONVERTED},
    "petra": {"method.name": "petra", "method.schedule": "1f1b", "partition.stages": 2, **CONVERTED},
    "adapters": {"finetune.lora.on": ["*_proj"], "finetune.lora.rank": 8, "finetune.lora.alpha": 16},
}
"""Changes of the specification."""
PROMPT = "ROMEO:\n"


@click.command()
@click.argument("model", type=click.Path(exists=True, resolve_path=True))
@click.argument("tokenizer", type=click.Path(exists=True, resolve_path=True))
@click.argument("root", type=click.Path(exists=True, resolve_path=True))
@click.option("--method", default="backprop", show_default=True, type=click.Choice(list(METHODS)))
@click.option("--windows", default=240, show_default=True, help="Of training, 256 tokens each.")
@click.option("--lr", default=1e-4, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True, help="Of a process.")
@click.option("--compute", default="float32", show_default=True, help="As in [precision].")
@click.option("--directory", type=click.Path(path_type=Path), default="runs/finetune", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(
    *,
    model: str,
    tokenizer: str,
    root: str,
    method: str,
    windows: int,
    lr: float,
    processes: int,
    threads: int,
    compute: str,
    directory: Path,
    output: Path,
) -> None:
    files: dict[str, Any] = {
        "architecture.options.model": model,
        "init.weights": model,
        "data.options.tokenizer": tokenizer,
        "metric.bits-per-byte.options.tokenizer": tokenizer,
        "data.options.root": root,
    }
    before_training = directory / "before.json"
    if not before_training.exists():
        still = {"run.directory": str(directory / "before"), "run.micro_batches": 4, "optimizer.options.lr": 0.0}
        run = petra_graph.train(SPEC, files | still)
        before = {
            **tested(run),
            "logits": equality(run, model),
            "sample": run.sample(prompt=PROMPT, tokens=60, temperature=0.7, seed=1),
        }
        before_training.write_text(json.dumps(before))
        shutil.rmtree(run.directory)  # half a gigabyte
    keep({"before": json.loads(before_training.read_text())}, [], output)
    folder = directory / f"{method}-{windows}-{lr:g}"
    stopped = sorted(folder.glob("*/checkpoints"))
    changes = {
        **METHODS[method],
        "run.directory": str(folder),
        "run.threads": threads,
        "precision.compute": compute,
        "data.options.samples": windows,
        "optimizer.options.lr": lr,
    }
    if stopped and petra_graph.Run(stopped[-1].parent).status != "done":
        run = petra_graph.train(resume=stopped[-1].parent, processes=processes)
    elif stopped:
        run = petra_graph.Run(stopped[-1].parent)
    else:
        run = petra_graph.train(SPEC, files | changes, processes=processes)
    if run.status != "done":
        raise click.ClickException(f"{run.directory} is {run.status}; give the same command to continue it")
    after = tested(run)
    is_converted = "conversion.coupling" in METHODS[method]
    if is_converted:
        found = run.evaluate({"conversion.coupling": "none", "run.evaluation_batches": 32})
        after["without conversion"] = dict(found.means)
    exported = folder / "exported"
    if not exported.exists():
        export_folder(run.directory, exported, unconverted=is_converted)
    summary = run.summary
    row = {
        "method": method,
        "windows": windows,
        "changes": {**METHODS[method], "optimizer.options.lr": lr},
        "processes": processes,
        "threads": threads,
        "compute": compute,
        "after": {**after, "sample of plain transformers": continued(exported, tokenizer)},
        "seconds": summary["seconds"],
        "updates": summary["updates"],
        "predicted bytes": petra_graph.plan(run.directory / "resolved.toml").document["totals"]["bytes"]["total"],
        "measured": summary["measured"],
    }
    keep({}, [row], output)


def tested(run: petra_graph.Run) -> dict[str, Any]:
    """Return what the run's evaluation on held-out text has found."""
    return {"of": run.summary["tested"], **run.summary["test"]}


def equality(run: petra_graph.Run, model: str) -> dict[str, float]:
    """Return how far the logits of the run's network, whose weights have not moved, are from those of transformers."""
    network = petra_graph.load(run)
    values = dict(configuration_of(model))
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values)).eval()
    weights = read(Path(model))
    theirs.load_state_dict({name: weights.read(of_node(name)) for name in theirs.state_dict()})
    tokens = torch.randint(values["vocab_size"], (2, 128), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = theirs(tokens).logits.transpose(1, 2), network(tokens)
    return {"largest difference": float((expected - found).abs().max()), "largest": float(expected.abs().max())}


def continued(folder: Path, tokenizer: str) -> str:
    """Return the likeliest text after the prompt, by transformers alone."""
    model, text = AutoModelForCausalLM.from_pretrained(folder), Tokenizer.from_file(tokenizer)
    tokens = torch.tensor([text.encode(PROMPT).ids])
    found = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=40, do_sample=False)
    return str(text.decode(found[0].tolist()))


def keep(facts: dict[str, Any], rows: list[dict[str, Any]], output: Path) -> None:
    """Write what was found, in place of rows of the same method, length and rate."""
    click.echo(json.dumps([facts, *rows], indent=1, ensure_ascii=False))
    kept = json.loads(output.read_text()) if output.exists() else {"rows": []}
    same = ("method", "windows", "changes", "processes")
    others = [one for one in kept["rows"] if not any(all(one[key] == row[key] for key in same) for row in rows)]
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.parent.mkdir(exist_ok=True)
    found = {**kept, "date": now, **facts, "rows": [*others, *rows], "environment": setting}
    output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
