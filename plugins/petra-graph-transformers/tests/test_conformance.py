"""Every plugin of the package keeps the promises of its kind, and its declaration imports no torch."""

from __future__ import annotations

import string
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from petra_graph_transformers import architectures, declared

from petra_graph.plugins import BlockDeclaration, DataFacts, SpecError
from petra_graph_conformance import (
    check_architecture,
    check_block,
    check_callback,
    check_dataset,
    check_imports_no_torch,
    check_loss,
)

STREAMS = [(6, 8), (6, 8)]
TOKENS = DataFacts(shape=(6,), dtype="int64", classes=11, target_shape=(6,))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"heads": 2, "causal": True}, marks=pytest.mark.long),
        {"heads": 2, "causal": True, "rotary": True, "expansion": 0.5},
        {"heads": 3, "head_width": 4, "rotary": True, "dropout": 0.3},
        {"heads": 1, "dropout": 0.5, "causal": True},
    ],
)
def test_the_reversible_block(options: dict[str, object]) -> None:
    check_block(declared.REV_TRANSFORMER, STREAMS, {"output_std": 0.2, **options})


@pytest.mark.parametrize("options", [{}, {"positions": "none"}, {"dropout": 0.2}])
def test_the_embedding_of_patches(options: dict[str, object]) -> None:
    check_block(declared.PATCH_EMBEDDING, [(2, 4, 6)], {"patch": 2, "width": 8, **options})


@pytest.mark.parametrize("options", [{}, {"positions": "none"}, {"dropout": 0.2}])
def test_the_embedding_of_tokens(options: dict[str, object]) -> None:
    check_block(declared.TOKEN_EMBEDDING, [(6,)], {"vocabulary": 300, "width": 8, **options}, draw=_tokens)


def _tokens(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(300, shape, generator=generator)


@pytest.mark.parametrize("head", [declared.TOKEN_LOGITS, declared.POOLED_LOGITS])
def test_heads(head: BlockDeclaration) -> None:
    check_block(head, STREAMS, {"classes": 5})


@pytest.mark.parametrize("options", [{}, {"positions": "rotary", "dropout": 0.1}])
def test_architectures(options: dict[str, object]) -> None:
    size = {"layers": 2, "heads": 2, "width": 8}
    check_architecture(architectures.GPT, {**size, **options}, facts=TOKENS)
    check_architecture(architectures.VIT, {**size, **options, "patch": 4}, facts=DataFacts(shape=(1, 8, 8), classes=10))


def test_the_loss() -> None:
    check_loss(declared.TOKEN_CROSS_ENTROPY, output=(11, 6))
    check_loss(declared.TOKEN_CROSS_ENTROPY, output=(11,))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of two files, 2,808 characters of 27."""
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text("\n".join([string.ascii_lowercase] * 52))
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"samples": 50, "test_share": 0.3, "pattern": "*.txt"}])
def test_data_sets(text: Path, options: dict[str, object]) -> None:
    for data_set in (declared.TEXT_BYTES, declared.TEXT_CHARACTERS):
        check_dataset(data_set, {"root": str(text), "context": 16, **options})


def test_the_callback() -> None:
    check_callback(declared.TEXT_SAMPLES, {"tokens": 3})


def test_declarations_import_no_torch() -> None:
    check_imports_no_torch("petra_graph_transformers.declared")
    check_imports_no_torch("petra_graph_transformers.architectures")


def test_all_are_registered() -> None:
    found = {
        entry.load()
        for group in ("blocks", "architectures", "losses", "datasets", "callbacks")
        for entry in entry_points(group=f"petra_graph.{group}")
        if entry.value.startswith("petra_graph_transformers.")
    }
    ours = {
        value
        for module in (declared, architectures)
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and hasattr(value, "build")
    }
    assert found == ours
    assert len(ours) == 11


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (DataFacts(shape=(3, 8, 8), classes=10), "gpt needs samples int64"),
        (DataFacts(shape=(8,), dtype="int64", classes=10), "a target for each token"),
        (DataFacts(shape=(8,), dtype="int64", target_shape=(8,)), "vocabulary is unknown"),
    ],
)
def test_gpt_refuses_what_are_no_tokens(facts: DataFacts, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        architectures.gpt(architectures.GptOptions(), facts)


def test_vit_names_all_that_is_wrong() -> None:
    with pytest.raises(SpecError) as raised:
        architectures.vit(architectures.VitOptions(patch=5), DataFacts(shape=(1, 28, 28)))
    assert [problem.path for problem in raised.value.problems] == [("patch",), ("classes",)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 10, "heads": 4}, "width must be a multiple of heads"),
        ({"width": 12, "heads": 4, "positions": "rotary"}, "an even number of features of a head"),
    ],
)
def test_widths_that_heads_cannot_share(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        architectures.GptOptions(**options)
