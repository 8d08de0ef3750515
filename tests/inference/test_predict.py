"""Files as samples, and predictions of saved runs: classes, and texts."""

from __future__ import annotations

import importlib
import json
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.inference.predict import as_samples, draw_tokens, predict_samples, read_file
from petra_graph.inference.saved_run import open_data
from petra_graph.plugins import DataFacts
from petra_graph.plugins.contract import DATA_SET
from petra_graph.plugins.registry import discover
from tests.support import ROOT

PIXELS = np.arange(3 * 8 * 6, dtype=np.uint8).reshape(8, 6, 3)
READER = """\
import torch

def read(path, *, shape):
    return torch.full((2, *shape), len(path.read_text()), dtype=torch.uint8)
"""


@pytest.fixture
def read(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda file: read_file(file, opened.network.checked.data, opened.facts)


def test_an_image_of_the_right_size_is_taken_as_it_is(read):
    Image.fromarray(PIXELS).save("image.png")
    assert torch.equal(read("image.png"), torch.from_numpy(PIXELS).permute(2, 0, 1).unsqueeze(0))


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (7, 9), (3, 3)])
def test_others_are_resized_and_cropped(read, size):
    Image.new("L", size, 100).save("image.jpg")
    found = read("image.jpg")
    assert found.shape == (1, 3, 8, 6)
    assert (found.float() - 100).abs().max() < 3, "grey became three channels"


def test_arrays(read):
    np.save("one.npy", PIXELS.transpose(2, 0, 1))
    np.save("many.npy", np.stack([PIXELS.transpose(2, 0, 1)] * 3).astype(np.int64))
    one, many = read("one.npy"), read("many.npy")
    assert one.shape == (1, 3, 8, 6)
    assert many.shape == (3, 3, 8, 6)
    assert many.dtype == torch.uint8
    assert torch.equal(many[2], one[0])


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, 8, 6)), "the network reads uint8 (.|\n)*float64(.|\n)*the network itself normalises"),
        (np.full((3, 8, 6), 256), "the network reads uint8 (.|\n)*int64"),
        (np.zeros((3, 8, 6), bool), "the network reads uint8 (.|\n)*bool"),
        (np.zeros((8, 6, 3), np.uint8), r"has \[8, 6, 3\], and the network reads \[3, 8, 6\]"),
        (np.array([{}], dtype=object), "Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_are_no_samples(read, array, reason):
    np.save("array.npy", array, allow_pickle=True)
    with pytest.raises(SpecError, match=reason):
        read("array.npy")


def test_what_a_network_of_floats_reads():
    """Images of uint8 were read as 0 to 255 by a network that was trained on 0 to 1."""
    facts = DataFacts(shape=(2,), dtype="float32")
    for kind in (np.float64, np.float32):
        assert torch.equal(as_samples(np.array([1, 2], kind), "x", facts), torch.tensor([[1.0, 2.0]]))
    assert as_samples(torch.ones(3, 2, requires_grad=True), "x", facts).dtype == torch.float32
    for kind in (np.uint8, np.int64, bool, complex):
        with pytest.raises(SpecError, match="the network reads float32"):
            as_samples(np.zeros(2, kind), "x", facts)
    tokens = as_samples(np.array([1, 60_000], np.uint16), "x", DataFacts(shape=(2,), dtype="int64"))
    assert tokens.tolist() == [[1, 60_000]]
    with pytest.raises(SpecError, match="reads several inputs"):
        as_samples({}, "x", DataFacts(shape={"a": (2,), "b": (3,)}, dtype={"a": "uint8", "b": "uint8"}))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken.png", "broken.png cannot be read: "),
        ("nowhere.png", "nowhere.png cannot be read: .*No such file"),
        ("notes.txt", 'notes.txt is no sample of data set "random"'),
    ],
)
def test_a_file_that_cannot_be_read_is_named(read, tmp_path, name, said):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SpecError, match=said):
        read(name)


def test_the_digit_beside_the_specs_is_a_test_sample():
    """README's command predicts it."""
    digits, _ = discover().resolve(DATA_SET, "digits").read({})
    samples, targets = digits.build().test.fetch(np.array([3]), seed=0, epoch=0)
    with Image.open(ROOT / "specs/digit.png") as image:
        assert np.array_equal(np.array(image), samples[0, 0])
    assert targets.tolist() == [3]


@pytest.mark.parametrize(
    ("name", "options"), [("image-folder", {"size": 20}), ("imagenet", {"size": 20, "resize": 26, "classes": 2})]
)
def test_an_image_is_read_as_the_test_split_reads_it(here, name, options):
    generator = np.random.default_rng(0)
    for split, label in product(("train", "val", "test"), ("one", "two")):
        (here / "images" / split / label).mkdir(parents=True)
        pixels = generator.integers(0, 256, (37, 53, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(here / "images" / split / label / "a.png")
    plugin, problems = discover().resolve(DATA_SET, name).read({"root": "images", **options})
    assert problems == ()
    data = plugin.build()
    expected, _ = data.test.fetch(np.arange(2), seed=0, epoch=0)
    split = "val" if name == "imagenet" else "test"
    files = [f"images/{split}/{label}/a.png" for label in ("one", "two")]
    assert torch.equal(torch.cat([read_file(file, plugin, data.facts) for file in files]), expected)


def test_a_data_set_may_read_its_own_files(opened, write, here, monkeypatch):
    write("my_reader.py", READER)
    write("notes.txt", "hello")
    monkeypatch.syspath_prepend(str(here))
    data = opened.network.checked.data
    monkeypatch.setattr(data.code, "read", staticmethod(importlib.import_module("my_reader").read), raising=False)
    assert torch.equal(read_file("notes.txt", data, opened.facts), torch.full((2, 3, 8, 6), 5, dtype=torch.uint8))


@pytest.fixture
def files(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples, _ = open_data(opened).test.fetch(range(5), seed=0, epoch=0)
    np.save("two.npy", samples[:2].numpy())
    np.save("one.npy", samples[2].numpy())
    return samples[:3]


def test_probabilities_of_the_best_classes(trained, opened, files, capsys):
    assert main(["predict", str(trained), "two.npy", "one.npy", "--json", "--top", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["file"], one["index"]) for one in found] == [("two.npy", 0), ("two.npy", 1), ("one.npy", 0)]
    with torch.no_grad():
        values, classes = opened.load()[0](files).softmax(1).topk(4)
    assert [[one["class"] for one in row["classes"]] for row in found] == classes.tolist()
    assert [[one["score"] for one in row["classes"]] for row in found] == values.tolist()


def test_outputs_that_are_no_logits_are_no_probabilities(trained, files, capsys):
    assert main(["predict", str(trained), "one.npy", "--json", "--set", "loss.name=mean-squared-error"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert sum(one["score"] for one in found["classes"]) != pytest.approx(1)


def test_no_prediction_is_told_of_another_sample(opened):
    """A network that returns fewer outputs than it has samples gave those of one file to another."""
    network, _ = opened.load()
    network.forward = lambda samples: type(network).forward(network, samples)[1:]
    files = [(name, torch.zeros(2, *opened.facts.shape, dtype=torch.uint8)) for name in ("a", "b")]
    with pytest.raises(ValueError, match="zip"):
        predict_samples(opened, network, files)


# --- texts continued by networks of next tokens ---


def network(tokens):
    """The logits 0, 1, 2 for every token."""
    assert tokens.shape[1] <= 4
    return torch.arange(3.0)[None, :, None].expand(1, 3, tokens.shape[1])


def drawn(tokens, **options):
    return draw_tokens(network, [0, 1], tokens, 4, **options)


def test_the_likeliest_token_always_the_likeliest_two_and_each_by_its_share():
    assert drawn(tokens=5, temperature=0.0) == [0, 1, 2, 2, 2, 2, 2]
    before = torch.get_rng_state()
    assert set(drawn(tokens=200, top_k=2)[2:]) == {1, 2}
    found = drawn(tokens=2000, temperature=1.0)
    shares = torch.tensor(found[2:]).bincount(minlength=3) / 2000
    torch.testing.assert_close(shares, torch.arange(3.0).softmax(0), rtol=0, atol=0.04)
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn(tokens=2000, temperature=1.0) == found
    assert drawn(tokens=2000, temperature=1.0, seed=1) != found


def test_a_run_continues_a_text(letters, capsys):
    def said(*options):
        capsys.readouterr()
        assert main(["predict", "latest", "--prompt", "fg", *options]) == 0
        return capsys.readouterr().out

    assert said("--temperature", "0", "--tokens", "9") == "fghabcdefgh\n"
    hot = ("--temperature", "9", "--tokens", "60")
    assert said(*hot) == said(*hot) != said(*hot, "--seed", "1")
    assert json.loads(said("--tokens", "3", "--json"))["text"].startswith("fg")
    assert pg.open_run("latest").sample(prompt="fg", temperature=9, tokens=60) + "\n" == said(*hot)


def test_a_text_that_has_no_tokens(letters, capsys):
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "FG"]) == 2
    assert "'FG' has other letters than a to h\n    help: write small letters" in capsys.readouterr().err
