"""Data sets of the library `datasets`: documents as windows, prompts that are not learned, images; files, folders and wrong ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from petra_graph_conformance import DataSetTrial, parametrize_with_checks
from petra_graph_hf import declared
from petra_graph_hf.bits_per_byte import BitsPerByte
from petra_graph_hf.declared import BitsPerByteOptions, DocumentsOptions, PicturesOptions, SourceOptions
from petra_graph_hf.documents import hf_text
from petra_graph_hf.pictures import count_classes, hf_images
from petra_graph_hf.sources import open_source
from petra_graph_hf.tokenizers_on_disk import end_token
from PIL import Image
from tiny_models import VOCABULARY, latest, tokenizer

from petra_graph.cli.main import main
from petra_graph.plugins import SpecError

datasets = pytest.importorskip("datasets")

END = "<|end|>"
WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "log"]
OPTIONS: dict[str, Any] = {"path": "rows", "tokenizer": "model", "end_of_text": END, "context": 8}


@pytest.fixture(autouse=True)
def rows(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Documents of one to nine words with a prompt, in two splits, as `save_to_disk` and as files have them; nothing outside the folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", here / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    made = {name: documents(seed, count) for seed, (name, count) in enumerate((("train", 60), ("test", 20)))}
    datasets.DatasetDict({name: datasets.Dataset.from_list(one) for name, one in made.items()}).save_to_disk("rows")
    Path("files").mkdir()
    for name, one in made.items():
        Path(f"files/{name}.jsonl").write_text("\n".join(map(json.dumps, one)))
    yield
    datasets.enable_progress_bars()


def documents(seed: int, count: int) -> list[dict[str, str]]:
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, generator.integers(1, 10))) for _ in range(count)]
    return [{"text": text, "asked": f"{number}?"} for number, text in enumerate(texts)]


def tokens_of(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def stream(texts: Sequence[str]) -> list[int]:
    end = end_token("model", END)
    return [token for text in texts for token in [*tokens_of(text), end]]


@parametrize_with_checks(
    DataSetTrial.of(declared.HF_TEXT, OPTIONS),
    DataSetTrial.of(declared.HF_TEXT, {**OPTIONS, "prompt": "asked", "packed": False, "test_share": 0.3}),
)
def test_a_promise_of_the_documents(check: Callable[[], None]) -> None:
    check()


def test_packed_windows_are_the_documents_with_an_end_behind_each() -> None:
    opened = hf_text(DocumentsOptions(**OPTIONS))
    whole = stream([row["text"] for row in documents(0, 60)])
    count = (len(whole) - 1) // 8
    samples, targets = opened.train.fetch(np.arange(len(opened.train)), seed=0, epoch=0)
    assert (samples.flatten().tolist(), targets.flatten().tolist()) == (whole[: count * 8], whole[1 : count * 8 + 1])
    assert (opened.facts.classes, opened.facts.target_shape) == (VOCABULARY, (8,))


def test_a_prompt_is_read_and_not_learned() -> None:
    row = {"text": "the cat sat", "asked": "on the mat? "}
    datasets.DatasetDict(dict.fromkeys(("train", "test"), datasets.Dataset.from_list([row]))).save_to_disk("one")
    options = DocumentsOptions(**{**OPTIONS, "path": "one", "prompt": "asked", "context": 40, "packed": False})
    samples, targets = hf_text(options).train.fetch(np.array([0]), seed=0, epoch=0)
    end = tokenizer().token_to_id(END)
    asked, answer = tokens_of(row["asked"]), [*tokens_of(row["text"]), end]
    filled = 40 - len(asked) - len(answer)
    assert samples[0].tolist() == [*asked, *answer, *[end] * filled]
    assert targets[0].tolist() == [*[-100] * (len(asked) - 1), *answer, *[-100] * (filled + 1)]
    packed = hf_text(DocumentsOptions(**{**OPTIONS, "prompt": "asked"})).train
    learned = {int(one) for one in packed.targets.flatten()} - {-100}
    assert learned <= set(stream([row["text"] for row in documents(0, 60)]))
    assert not learned & set(tokens_of("?"))
    assert (packed.targets != -100).any(1).all()


def test_a_long_document_is_cut_off_in_a_window_of_its_own() -> None:
    opened = hf_text(DocumentsOptions(**{**OPTIONS, "packed": False, "context": 3}))
    assert len(opened.train) == 60
    for (window, aims), row in zip(
        zip(opened.train.tokens, opened.train.targets, strict=True), documents(0, 60), strict=True
    ):
        whole = stream([row["text"]])[:4]
        assert [*window[:1], *aims[aims != -100]] == whole


def test_the_share_for_the_test_is_the_same_each_time_and_no_row_is_in_both() -> None:
    first, again = (open_source(SourceOptions(path="rows", test_share=0.25)) for _ in range(2))
    train, test = (list(one["asked"]) for _, one in first.each())
    assert (len(train), len(test), len({*train, *test})) == (45, 15, 60)
    assert [list(one["asked"]) for _, one in again.each()] == [train, test]


def test_a_split_for_the_validation_and_windows_that_are_set_apart_for_it() -> None:
    opened = hf_text(DocumentsOptions(**{**OPTIONS, "validation": "test"}))
    assert opened.validation is not None
    assert np.array_equal(opened.validation.tokens, opened.test.tokens)
    train, held = opened.train.set_apart(0.25)  # type: ignore[attr-defined]
    assert np.array_equal(np.concatenate([train.tokens, held.tokens]), opened.train.tokens)
    assert len(held) == round(0.25 * len(opened.train))
    apart = hf_text(DocumentsOptions(**{**OPTIONS, "packed": False})).train
    assert (apart.plain is apart, hasattr(apart, "set_apart")) == (True, False)


def test_files_are_read_as_the_folder_is(here: Path) -> None:
    def texts(**options: Any) -> list[list[str]]:
        return [list(one["text"]) for _, one in open_source(SourceOptions(**options)).each()]

    expected = texts(path="rows")
    assert texts(path="files") == expected
    rows = datasets.load_from_disk("rows")["train"]
    rows.to_parquet("rows.parquet")
    rows.to_csv("rows.csv")
    for name in ("files/train.jsonl", "rows.parquet", "rows.csv"):
        train, test = texts(path=name, test_share=0.5)
        assert sorted([*train, *test]) == sorted(expected[0])


WRONG: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "no file": ({"path": "none"}, "path", ["there is no file or folder none"]),
    "another file": ({"path": "verse.txt"}, "path", ["verse.txt must end in one of .parquet, ", '"text-tokens"']),
    "a damaged file": ({"path": "bad.jsonl"}, "path", ["bad.jsonl cannot be read as a data set: JSON parse error"]),
    "a split": ({"test": "tset"}, "test", ["no split 'tset'", "did you mean 'test'", "or set test_share = 0.1"]),
    "one split alone": ({"path": "files/train.jsonl"}, "test", ["has no split 'test'"]),
    "too large a share": ({"test_share": 0.999}, "test_share", ["leaves none of 60 rows"]),
    "a column": ({"column": "txt"}, "column", ["has no column 'txt'", "did you mean 'text'"]),
    "a prompt": ({"prompt": "question"}, "prompt", ["has no column 'question'", "allowed: asked, text"]),
    "numbers": ({"path": "n.jsonl", "test_share": 0.5}, "column", ["has int in the column 'text', not a text"]),
    "no such token": ({"end_of_text": "<|eot|>"}, "end_of_text", ["has no token '<|eot|>'", END]),
    "a context": ({"context": 5000}, "context", ["have no window of 5000 tokens with a target"]),
    "a tokenizer": ({"vocabulary": 9}, "tokenizer", ["has 277 tokens, and vocabulary = 9"]),
    "no network": ({"path": None, "hub": "someone/none"}, "hub", ["cannot be fetched: ", "save_to_disk"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_its_option(case: str) -> None:
    changes, key, parts = WRONG[case]
    Path("bad.jsonl").write_text('{"text": \n')
    Path("n.jsonl").write_text('{"text": 1}\n{"text": 2}\n')
    with pytest.raises(SpecError) as caught:
        hf_text(DocumentsOptions(**{**OPTIONS, **changes}))
    (problem,) = caught.value.problems
    assert problem.path == (key,)
    for part in parts:
        assert part in f"{problem.message}; {problem.hint}"


def test_one_of_path_and_hub_is_needed() -> None:
    several: Any = ({}, {"path": "rows", "hub": "someone/none"})
    for given in several:
        with pytest.raises(ValueError, match="needs one of path and hub"):
            SourceOptions(**given)


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SpecError, match=r"petra-graph-hf\[datasets\]"):
        open_source(SourceOptions(path="rows"))


def test_nothing_is_said_and_settings_stay(capsys: pytest.CaptureFixture[str]) -> None:
    datasets.enable_progress_bars()
    level = datasets.logging.get_verbosity()
    open_source(SourceOptions(path="files"))
    assert capsys.readouterr() == ("", "")
    assert (datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()) == (False, level)


def test_the_end_of_a_document_is_no_byte_of_it() -> None:
    target = torch.tensor([[*tokens_of("the cat"), tokenizer().token_to_id(END)]])
    output = torch.zeros(1, VOCABULARY, target.shape[1])
    counts = [BitsPerByte(BitsPerByteOptions(tokenizer="model", end_of_text=one)) for one in (None, END)]
    for one in counts:
        one.update(output, target)
    assert float(counts[1].compute() / counts[0].compute()) == pytest.approx((7 + len(END)) / 7)


@pytest.mark.long
def test_a_model_is_tuned_on_prompts_and_answers_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    spec = Path("tiny.toml").read_text()
    before, _, behind = spec.partition("[data]")
    data = '[data]\nname = "hf-text"\nbatch = 4\n[data.options]\npath = "files"\nprompt = "asked"\ntokenizer = "model"\ncontext = 12\n'
    Path("tuned.toml").write_text(
        f'{before}{data}end_of_text = "{END}"\n\n[[metric]]{behind.partition("[[metric]]")[2]}'
    )
    assert main(["run", "tuned.toml"]) == 0
    means = json.loads((latest() / "summary.json").read_text())["test"]
    assert 0 < means["loss"] < 8
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "the cat", "--tokens", "3"]) == 0
    from petra_graph_hf.commands import main as of_plugin

    assert of_plugin(["export", "latest", "out"]) == 0
    assert Path("out/tokenizer.json").is_file()


NAMES = ("ant", "bee", "cat")


def pictures(count: int, labels: Sequence[Any], feature: Any = None) -> Any:
    """Images of one colour each, with labels in turn."""
    shades = [Image.new("RGB", (20, 16), (number, 2 * number, 255 - number)) for number in range(count)]
    features = datasets.Features({"image": datasets.Image(), "label": feature}) if feature is not None else None
    return datasets.Dataset.from_dict({"image": shades, "label": [labels[one % 3] for one in range(count)]}, features)


@pytest.mark.parametrize(
    ("labels", "feature", "targets", "names"),
    [
        ((0, 1, 2), datasets.ClassLabel(names=list(NAMES)), [2, 0], NAMES),
        (("bee", "cat", "ant"), None, [0, 1], NAMES),
        ((0, 1, 2), None, [2, 0], None),
    ],
    ids=["named classes", "texts", "numbers"],
)
def test_images_with_labels(labels: Any, feature: Any, targets: list[int], names: tuple[str, ...] | None) -> None:
    datasets.DatasetDict(train=pictures(12, labels, feature), test=pictures(6, labels, feature)).save_to_disk(
        "pictures"
    )
    options = count_classes(PicturesOptions(path="pictures", size=8, crop_padding=0, mix=({"name": "MixUp"},)))
    opened = hf_images(options)
    images, found = opened.test.fetch(np.array([5, 0]), seed=0, epoch=0)
    assert images[:, :, 4, 4].tolist() == [[5, 10, 250], [0, 0, 255]]
    assert (found.tolist(), opened.facts.classes, opened.facts.class_names) == (targets, 3, names)
    assert hasattr(opened.train, "mix")
    with_validation: Any = hf_images(attrs.evolve(options, validation="test"))
    assert len(with_validation.validation) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has no column 'label'"),
        ({"label": "words"}, "the column 'words' has other values than classes"),
        ({"label": "text"}, "the data set has no column 'image'"),
        ({"label": "text", "image": "asked"}, "the column 'asked' has Value, not images"),
    ],
)
def test_columns_that_are_no_images_or_classes_are_refused(changes: Any, message: str) -> None:
    rows = datasets.Dataset.from_list([{"text": "a", "asked": "b", "words": [1, 2]}] * 2)
    datasets.DatasetDict(train=rows, test=rows).save_to_disk("others")
    with pytest.raises(SpecError, match=message):
        hf_images(PicturesOptions(path="others", size=8, **changes))
