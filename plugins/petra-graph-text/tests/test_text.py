"""Text as tokens and windows: bytes, characters, and tokens of a tokenizer on disk."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from petra_graph_text.text import TextBytes, TextCharacters, TextTokens, drawn
from petra_graph_text.training import BitsPerByte
from tiny_models import VOCABULARY, save_tokenizer

from petra_graph.plugins import DataFacts, SpecError
from tests.support.kit import opened

TEXT = "To be, or not to be: that is the question.\nÀ ç €\n" * 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_characters_are_numbered_and_come_back(file: Path) -> None:
    text = opened(TextCharacters, root=str(file), context=10)
    assert text.facts == DataFacts(
        shape=(10,), dtype="int64", classes=len(set(TEXT)), target_shape=(10,), class_names=tuple(sorted(set(TEXT)))
    )
    made = TextCharacters.codec(text.facts)
    assert made.encode(TEXT) == [sorted(set(TEXT)).index(one) for one in TEXT]
    assert made.decode(made.encode(TEXT)) == TEXT


def test_windows_are_of_the_text_and_targets_one_further(file: Path) -> None:
    text = opened(TextBytes, root=str(file), context=10, samples=40)
    whole = TEXT.encode()
    first = len(whole) - round(0.1 * len(whole))
    assert len(text.train) == 40
    for split, part in ((text.train, whole[:first]), (text.test, whole[first:])):
        samples, targets = split.fetch(np.arange(len(split)), seed=3, epoch=1)
        assert torch.equal(samples[:, 1:], targets[:, :-1])
        joined = torch.cat((samples, targets[:, -1:]), dim=1)
        assert all(bytes(window.tolist()) in part for window in joined)
    tail = bytes(targets.flatten().tolist())
    assert tail == whole[first + 1 :][: len(tail)]
    assert len(whole) - first - 1 - len(tail) < 10


def test_training_windows_reach_every_start_and_change_with_seed_and_epoch(file: Path) -> None:
    split = opened(TextBytes, root=str(file), context=10, samples=20_000).train
    starts = drawn(0, 0, np.arange(20_000)) % np.uint64(len(split.tokens) - 10)
    assert set(starts.tolist()) == set(range(len(split.tokens) - 10))
    one = split.fetch(np.arange(20), seed=0, epoch=0)[0]
    assert not torch.equal(one, split.fetch(np.arange(20), seed=1, epoch=0)[0])
    assert not torch.equal(one, split.fetch(np.arange(20), seed=0, epoch=1)[0])


def test_drawn_numbers_are_splitmix64s() -> None:
    """The first numbers of the published generator seeded with 0, 1234567 (Vigna, splitmix64.c)."""
    assert drawn(0, 0, np.array([0]))[0] != drawn(0, 0, np.array([1]))[0]
    from petra_graph_text.text import _mixed

    assert _mixed(np.array([0], np.uint64))[0] == 0xE220A8397B1DCDAF
    assert _mixed(np.array([1234567], np.uint64))[0] == 6457827717110365317


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root": "/nowhere"}, "there is no file or folder /nowhere"),
        ({"pattern": "/x"}, "pattern '/x' cannot be used"),
        ({"context": 100}, "a window of 100 needs one more than its length in both"),
    ],
)
def test_what_is_wrong_is_said(file: Path, changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"root": str(file.parent), **changes}
    with pytest.raises(SpecError, match=message) as raised:
        opened(TextCharacters, **given)
    (problem,) = raised.value.problems
    assert problem.hint
    assert problem.path[-1] in {"root", *changes}


@pytest.mark.parametrize("given", [{}, {"samples": 7}])
def test_the_end_of_the_training_is_set_apart_for_the_validation(file: Path, given: dict[str, int]) -> None:
    whole = opened(TextBytes, root=str(file), context=10, **given).train
    train, validation = whole.set_apart(0.2)
    assert train.tokens.tolist() + validation.tokens.tolist() == whole.tokens.tolist()
    assert len(validation.tokens) == round(0.2 * len(whole.tokens))
    assert len(validation) == (len(validation.tokens) - 1) // 10
    assert len(train) == (given.get("samples") or (len(train.tokens) - 1) // 10)
    windows, targets = validation.fetch(np.arange(len(validation)), seed=0, epoch=0)
    assert torch.equal(
        torch.cat([windows.flatten(), targets[-1:, -1]]),
        torch.from_numpy(validation.tokens[: windows.numel() + 1].astype(np.int64)),
    )
    with pytest.raises(SpecError, match="tokens for training and 2 for the validation"):
        whole.set_apart(0.002)


@pytest.fixture
def tokens(file: Path) -> dict[str, Any]:
    save_tokenizer(file.with_name("tokenizer.json"), TEXT)
    return {"root": str(file), "tokenizer": str(file.parent), "context": 12}


def test_windows_are_the_tokens_of_the_text_and_come_back(
    tokens: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = opened(TextTokens, **tokens)
    whole = [*text.train.tokens, *text.test.tokens]
    assert TextTokens.codec(text.facts, tokenizer=Path(tokens["tokenizer"])).decode(whole) == TEXT
    assert text.facts.classes == TextTokens.completed(tokenizer=Path(tokens["tokenizer"]))["vocabulary"]
    assert (
        TextTokens.read(Path(tokens["root"]), tokenizer=Path(tokens["tokenizer"]), context=12).flatten().tolist()
        == whole[: len(whole) // 12 * 12]
    )
    monkeypatch.setattr("petra_graph_text.tokenizers_on_disk._AT_ONCE", 70)  # it is cut before the end of a line
    assert [*opened(TextTokens, **tokens).train.tokens] == [*text.train.tokens]


def test_bits_are_those_of_the_bytes_of_the_targets(tokens: dict[str, Any]) -> None:
    """Targets that are passed over count neither as nats nor as bytes."""
    made = TextTokens.codec(TextTokens.facts(context=12), tokenizer=Path(tokens["tokenizer"]))
    target = torch.tensor([made.encode("To be, or À ç €")])
    size = len("To be, or À ç €".encode())
    logits = torch.randn(1, VOCABULARY, target.shape[1], generator=torch.Generator().manual_seed(0))
    metric = BitsPerByte(tokenizer=Path(tokens["tokenizer"]))
    metric.update(logits, target)
    metric.update(logits, torch.full_like(target, -100))
    nats = torch.nn.functional.cross_entropy(logits.double(), target, reduction="sum")
    assert float(metric.compute()) == pytest.approx(float(nats) / (size * log(2)))
