"""Text as tokens: windows, codec and bytes of tokens; a tokenizer from a GGUF file; and the promises of data set and metric."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from petra_graph_conformance import DataSetTrial, MetricTrial, check_imports_no_torch, parametrize_with_checks
from petra_graph_hf import declared
from petra_graph_hf.bits_per_byte import BitsPerByte
from petra_graph_hf.commands import main as of_plugin
from petra_graph_hf.declared import BitsPerByteOptions, TokensOptions, counted
from petra_graph_hf.text import codec, read_tokens, text_tokens
from petra_graph_hf.tokenizers_on_disk import bytes_of_tokens, tokenizer_of, vocabulary_of
from tiny_models import VERSE, VOCABULARY, tiny, tokenizer, write_gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from petra_graph.plugins import SpecError

OPTIONS: dict[str, Any] = {"root": "verse.txt", "tokenizer": "model", "context": 12}


@pytest.fixture
def without_repetition(here: Path) -> None:
    """Otherwise windows of the test are windows of the training."""
    words = (here / "verse.txt").read_text().split()
    (here / "verse.txt").write_text(" ".join(random.Random(0).choices(words, k=4000)))


@pytest.mark.usefixtures("without_repetition")
@parametrize_with_checks(
    DataSetTrial.of(declared.TEXT_TOKENS, OPTIONS),
    DataSetTrial.of(declared.TEXT_TOKENS, {**OPTIONS, "samples": 30, "vocabulary": VOCABULARY + 3}),
)
def test_a_promise_of_the_data_set(check: Callable[[], None]) -> None:
    check()


@pytest.mark.long
@parametrize_with_checks(MetricTrial.of(declared.BITS_PER_BYTE, {"tokenizer": "model"}, output=(VOCABULARY, 6)))
def test_a_promise_of_the_metric(check: Callable[[], None]) -> None:
    check()


@pytest.mark.long
def test_declarations_import_no_torch() -> None:
    for module in ("declared", "architectures", "configuration"):
        check_imports_no_torch(f"petra_graph_hf.{module}")


@pytest.mark.long
def test_windows_are_the_tokens_of_the_text() -> None:
    options = TokensOptions(**OPTIONS)
    text = text_tokens(options)
    whole = tokenizer().encode(VERSE * 40, add_special_tokens=False).ids
    assert [*text.train.tokens, *text.test.tokens] == whole
    assert text.facts.classes == VOCABULARY
    assert read_tokens(options, Path("verse.txt")).flatten().tolist() == whole[: len(whole) // 12 * 12]


@pytest.mark.long
def test_a_long_text_has_the_tokens_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut before the end of a line, which begins the next part's first token."""
    whole = text_tokens(TokensOptions(**OPTIONS))
    monkeypatch.setattr("petra_graph_hf.text._AT_ONCE", 70)
    parts = text_tokens(TokensOptions(**OPTIONS))
    assert list(parts.train.tokens) == list(whole.train.tokens)


@pytest.mark.long
def test_text_comes_back_with_special_tokens() -> None:
    options = TokensOptions(**OPTIONS)
    made = codec(options, text_tokens(options).facts)
    text = "the cat<|end|> À ç €\n"
    tokens = made.encode(text)
    assert tokenizer().token_to_id("<|end|>") in tokens
    assert made.decode(tokens) == text
    assert made.decode([VOCABULARY + 2, *tokens]) == text, "a number without a token"


@pytest.mark.long
def test_tokens_are_as_many_bytes_as_their_text() -> None:
    text = VERSE + "À ç € <|end|>"
    sizes = bytes_of_tokens("model")
    assert len(sizes) == VOCABULARY
    assert sum(sizes[one] for one in tokenizer().encode(text).ids) == len(text.encode())


@pytest.mark.long
def test_bytes_of_sentencepiece_tokens() -> None:
    vocabulary = {"<0x0A>": 0, "▁the": 1, "▁▁": 2, "é": 3}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.save("other.json")
    assert bytes_of_tokens("other.json") == [1, 4, 2, 2]


@pytest.mark.long
def test_a_tokenizer_that_does_not_say_its_bytes_is_refused() -> None:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    made.save("words.json")
    with pytest.raises(SpecError, match=r"words\.json does not say how many bytes a token is"):
        bytes_of_tokens("words.json")


@pytest.mark.long
def test_bits_are_those_of_the_bytes_of_the_targets() -> None:
    """Targets that are passed over count neither as nats nor as bytes."""
    sizes = bytes_of_tokens("model")
    target = torch.tensor([[3, 270, -100], [40, 260, 7]])
    logits = torch.randn(2, VOCABULARY, 3, generator=torch.Generator().manual_seed(0))
    metric = BitsPerByte(BitsPerByteOptions(tokenizer="model"))
    metric.update(logits[:1], target[:1])
    metric.update(logits[1:], target[1:])
    nats = torch.nn.functional.cross_entropy(logits.double(), target, reduction="sum")
    size = sum(sizes[one] for one in target.flatten().tolist() if one >= 0)
    assert float(metric.compute()) == pytest.approx(float(nats) / (size * log(2)))
    with pytest.raises(ValueError, match="targets reach 277, and the tokenizer has 277 tokens"):
        metric.update(torch.zeros(1, VOCABULARY + 1, 1), torch.tensor([[VOCABULARY]]))


def test_the_tokenizer_of_a_gguf_file(capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(Path("tiny.gguf"), tiny())
    assert of_plugin(["tokenizer", "tiny.gguf", "made/tokenizer.json"]) == 0
    assert capsys.readouterr().out == f"made/tokenizer.json: {VOCABULARY} tokens\n"
    text = VERSE + "À ç € 2024<|end|>"
    assert tokenizer_of("made").encode(text).ids == tokenizer().encode(text).ids
    assert counted(TokensOptions(root="verse.txt", tokenizer="made")).vocabulary == VOCABULARY


@pytest.mark.long
def test_digits_of_smollm_are_tokens_of_their_own() -> None:
    write_gguf(Path("tiny.gguf"), tiny(), pre="smollm")
    assert of_plugin(["tokenizer", "tiny.gguf", "made.json"]) == 0
    split = tokenizer_of("made.json").pre_tokenizer
    assert [word for word, _ in split.pre_tokenize_str("in 2024")] == ["in", "Ġ", "2", "0", "2", "4"]


@pytest.mark.long
def test_a_vocabulary_counts_up_to_its_largest_token() -> None:
    made = Tokenizer(models.BPE({"a": 0, "b": 6}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.save("gaps.json")
    assert vocabulary_of("gaps.json") == 7


@pytest.mark.long
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no file nowhere\.json"),
        ("{", r"nowhere\.json is no tokenizer: "),
        (json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}), "is no tokenizer|fewer than two tokens"),
    ],
)
def test_what_is_no_tokenizer_is_refused(content: str | None, message: str) -> None:
    if content is not None:
        Path("nowhere.json").write_text(content)
    with pytest.raises(SpecError, match=message) as refused:
        counted(TokensOptions(root="verse.txt", tokenizer="nowhere.json"))
    (problem,) = refused.value.problems
    assert problem.path == ("tokenizer",)
    assert problem.hint
