"""Other people's networks, cut by the generic way: whether the nodes together compute the network's outputs and gradients, bit for bit.

python tools/studies/modules.py --write

Networks of packages that are not installed are left out: torchvision, timm, transformers.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch
from petra_graph_modules.cutting import CannotCut, CutNetwork, Input, copy_part, cut_network
from torch import Tensor, nn

from petra_graph.record.run_directory import environment

RESULT = Path(__file__).parent / "results" / "modules.json"
IMAGE, TOKENS = ((3, 32, 32), torch.float32), ((8,), torch.int64)
SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
Trial = tuple[str, Callable[[], nn.Module], tuple[tuple[int, ...], torch.dtype]]


class Logits(nn.Module):
    """A network of transformers whose output is a tensor."""

    def __init__(self, model: nn.Module, **given: Any) -> None:
        super().__init__()
        self.model = model
        self.given = given

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, **self.given).logits
        return logits


class LSTM(nn.Module):
    """A classifier of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(12, 3)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True, dropout=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        last: Tensor = self.last(hidden[-1])
        return last


def trials() -> Iterator[Trial]:
    """Yield networks of the packages that are installed."""
    yield "LSTM", LSTM, TOKENS
    if importlib.util.find_spec("torchvision"):
        from torchvision import models

        for name in ("resnet18", "mobilenet_v3_small", "swin_t"):
            yield f"torchvision {name}", lambda name=name: models.get_model(name, weights=None, num_classes=10), IMAGE  # type: ignore[misc]
    if importlib.util.find_spec("timm"):
        timm: Any = importlib.import_module("timm")
        image: dict[str, Any] = {"img_size": 32}
        sized = {"vit_tiny_patch16_224": image, "mixer_s32_224": image, "convnext_atto": {}, "efficientnet_lite0": {}}
        for name, given in sized.items():
            yield f"timm {name}", lambda name=name, given=given: timm.create_model(name, num_classes=10, **given), IMAGE  # type: ignore[misc]
    if importlib.util.find_spec("transformers"):
        hf: Any = importlib.import_module("transformers")
        llama = hf.LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=32)
        gpt2 = hf.GPT2Config(
            vocab_size=20, n_embd=16, n_layer=3, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
        )
        bert = hf.BertConfig(**SIZES, max_position_embeddings=32)
        yield "transformers Llama", lambda: Logits(hf.LlamaForCausalLM(llama), use_cache=False), TOKENS
        yield "transformers GPT-2", lambda: Logits(hf.GPT2LMHeadModel(gpt2), use_cache=False), TOKENS
        yield "transformers BERT", lambda: Logits(hf.BertForSequenceClassification(bert)), TOKENS


class Nodes(nn.Module):
    """The parts of a network, run as nodes of one stage are; parameters that they share are one."""

    def __init__(self, network: CutNetwork, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.parts = list(network.parts.values())
        self.owners = nn.ModuleList(nn.Module() for _ in self.parts)
        self.forwards = [copy_part(owner, network, part) for owner, part in zip(self.owners, self.parts, strict=True)]
        known: dict[str, nn.Parameter] = {}
        for part, owner in zip(self.parts, self.owners, strict=True):
            owner.load_state_dict({key: weights[key] for key in owner.state_dict()})
            for key, label in network.shared[part.name].items():
                path, _, last = key.rpartition(".")
                setattr(owner.get_submodule(path), last, known.setdefault(label, owner.get_parameter(key)))

    def forward(self, samples: Tensor) -> Tensor:
        made: list[tuple[Tensor, ...]] = []
        for part, owner, forward in zip(self.parts, self.owners, self.forwards, strict=True):
            streams = [stream for source in part.sources for stream in made[source]] if made else [samples]
            made.append(forward(owner, *streams))
        return made[-1][0]


def compared(make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Return how many nodes a network has, and whether outputs and gradients are equal; or why it cannot be cut."""
    try:
        network = cut_network(make, [Input(shape, dtype)])
    except CannotCut as error:
        return {"refused": f"{error}; {error.hint}"}
    plain = make()
    nodes = Nodes(network, plain.state_dict())
    samples = torch.randint(0, 20, (4, *shape)) if dtype == torch.int64 else torch.rand(4, *shape)
    row: dict[str, Any] = {
        "nodes": len(nodes.parts),
        "shared": sorted({one for own in network.shared.values() for one in own.values()}),
    }
    for train in (False, True):
        outputs = []
        for module in (plain, nodes):
            torch.manual_seed(3)
            outputs.append(module.train(train)(samples.clone()))
        row["training" if train else "evaluation"] = torch.equal(*outputs)
    for output in outputs:
        output.square().mean().backward()
    found = {key: one.grad for owner in nodes.owners for key, one in owner.named_parameters(remove_duplicate=False)}
    pairs = [(one.grad, found[key]) for key, one in plain.named_parameters() if one.grad is not None]
    row["gradients"] = all(gradient is not None and torch.equal(expected, gradient) for expected, gradient in pairs)
    differences = [float((expected - gradient).abs().max()) for expected, gradient in pairs if gradient is not None]
    return {**row, "largest difference of a gradient": max(differences)}


@click.command()
@click.option("--write", is_flag=True, help="write the result")
def main(*, write: bool) -> None:
    torch.set_num_threads(1)
    rows = {}
    for name, make, kind in trials():
        rows[name] = compared(make, *kind)
        click.echo(f"{name:32} {json.dumps(rows[name])}")
    if write:
        RESULT.parent.mkdir(exist_ok=True)
        setting = {key: value for key, value in environment().items() if key != "command"}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        RESULT.write_text(json.dumps({"date": now, "rows": rows, "environment": setting}, indent=1) + "\n")


if __name__ == "__main__":
    main()
