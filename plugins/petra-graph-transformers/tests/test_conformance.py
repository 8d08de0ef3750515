"""Every plugin of the package keeps the promises of its kind, and its declaration imports no torch."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from petra_graph_conformance import (
    ArchitectureTrial,
    CallbackTrial,
    DataSetTrial,
    LossTrial,
    Tokens,
    Trial,
    check_imports_no_torch,
    parametrize_with_checks,
)
from petra_graph_transformers import architectures, declared

from petra_graph.plugins import DataFacts, SpecError

STREAMS = [(6, 8), (6, 8)]
TOKENS = DataFacts(shape=(6,), dtype="int64", classes=11, target_shape=(6,))


SIZE = {"layers": 2, "heads": 2, "width": 8}
DIGITS = DataFacts(shape=(1, 8, 8), classes=10)


def reversible(**options: float) -> Trial:
    return Trial.of(declared.REV_TRANSFORMER, STREAMS, {"output_std": 0.2, **options})


def patches(**options: Any) -> Trial:
    return Trial.of(declared.PATCH_EMBEDDING, [(2, 4, 6)], {"patch": 2, "width": 8, **options})


def tokens(**options: Any) -> Trial:
    return Trial.of(declared.TOKEN_EMBEDDING, [(6,)], {"vocabulary": 300, "width": 8, **options}, draw=Tokens(300))


@pytest.mark.long
@parametrize_with_checks(reversible(heads=2, causal=True))
def test_a_promise_of_the_whole_block(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(
    reversible(heads=2, causal=True, rotary=True, expansion=0.5),
    reversible(heads=3, head_width=4, rotary=True, dropout=0.3),
    reversible(heads=1, dropout=0.5, causal=True),
    *(made(**options) for made in (patches, tokens) for options in ({}, {"positions": "none"}, {"dropout": 0.2})),
    Trial.of(declared.TOKEN_LOGITS, STREAMS, {"classes": 5}),
    Trial.of(declared.POOLED_LOGITS, STREAMS, {"classes": 5}),
    ArchitectureTrial.of(architectures.GPT, SIZE, facts=TOKENS),
    ArchitectureTrial.of(architectures.GPT, {**SIZE, "positions": "rotary", "dropout": 0.1}, facts=TOKENS),
    ArchitectureTrial.of(architectures.VIT, {**SIZE, "patch": 4}, facts=DIGITS),
    ArchitectureTrial.of(architectures.VIT, {**SIZE, "patch": 4, "positions": "rotary", "dropout": 0.1}, facts=DIGITS),
    LossTrial.of(declared.TOKEN_CROSS_ENTROPY, output=(11, 6)),
    LossTrial.of(declared.TOKEN_CROSS_ENTROPY, output=(11,)),
    CallbackTrial.of(declared.TEXT_SAMPLES, {"tokens": 3}),
)
def test_a_promise(check: Callable[[], None]) -> None:
    check()


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of two files, 2,808 characters of 27, without a repetition."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("b.txt", "a.txt")):
        shuffled = random.Random(seed)
        (tmp_path / name).write_text("\n".join("".join(shuffled.sample(string.ascii_lowercase, 26)) for _ in range(52)))


@pytest.mark.usefixtures("text")
@parametrize_with_checks(
    *(
        DataSetTrial.of(data_set, {"root": ".", "context": 16, **options})
        for data_set in (declared.TEXT_BYTES, declared.TEXT_CHARACTERS)
        for options in ({}, {"samples": 50, "test_share": 0.3, "pattern": "*.txt"})
    )
)
def test_a_promise_of_a_data_set(check: Callable[[], None]) -> None:
    check()


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
