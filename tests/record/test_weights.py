"""Weights are keyed by node, so that they load under any partition; files of other programs are what their content says, and none runs code."""

from __future__ import annotations

import json
import pickle
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from petra_graph.errors import SpecError
from petra_graph.record.weights import open_weights, save_weights, weights_of


def test_two_layers_may_share_a_parameter(tmp_path):
    """safetensors refuses tensors that share memory, which was found out at the end of a run."""
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_weights(tmp_path / "w.safetensors", weights_of([("tied", tied)]))
    loaded = load_file(tmp_path / "w.safetensors")
    assert torch.equal(loaded["tied/0.weight"], loaded["tied/1.weight"])
    assert loaded.keys() == {"tied/0.weight", "tied/0.bias", "tied/1.weight", "tied/1.bias"}


# --- of others ----------------------------------------------------------------------------------------------------------

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.steps": torch.tensor(3)}
WRITERS = {
    "safetensors": lambda path: save_file(TENSORS, path),
    "torch": lambda path: torch.save(TENSORS, path),
    "torch, before zip archives": lambda path: torch.save(TENSORS, path, _use_new_zipfile_serialization=False),
    "torch, a checkpoint": lambda path: torch.save({"state_dict": TENSORS, "epoch": 3}, path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_form_is_read(tmp_path, writer):
    WRITERS[writer](path := tmp_path / "weights")
    with open_weights(path) as file:
        assert dict(file.shapes) == {"a.weight": (2, 3), "a.steps": ()}
        assert all(torch.equal(file.read(name), tensor) for name, tensor in TENSORS.items())


class Code:
    """Pickled as a call."""

    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b"no weights"), "is damaged, or holds more than tensors"),
        (lambda path: path.write_bytes(b""), "is damaged, or holds more than tensors"),
        (lambda path: path.write_bytes(pickle.dumps(Code())), "whose code is not run"),
        (lambda path: torch.save({"a": Code()}, path), "whose code is not run"),
        (lambda path: torch.save([1], path), "holds something else than tensors"),
        (lambda path: torch.save({"epoch": 3, "a": torch.ones(1)}, path), "holds something else than tensors"),
        (lambda path: torch.save({}, path), "holds something else than tensors"),
    ],
)
def test_what_is_no_file_of_weights(tmp_path, capsys, write, message):
    write(path := tmp_path / "weights")
    with pytest.raises(SpecError, match=message), open_weights(path):
        pass
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_are_unreadable(tmp_path, zipped):
    """torch's reader raised KeyError, IndexError or UnicodeDecodeError, whatever the damage led it to."""
    dice, path = random.Random(0), tmp_path / "weights.pt"
    torch.save({"a": torch.ones(3, 4), "b": torch.zeros(2)}, path, _use_new_zipfile_serialization=zipped)
    whole, refused = path.read_bytes(), 0
    for _ in range(150):
        content = bytearray(whole)
        for at in dice.choices(range(min(len(content), 800)), k=dice.choice((1, 2, 4))):
            content[at] = dice.randrange(256)
        path.write_bytes(content)
        try:
            with open_weights(path) as found:
                list(map(found.read, found.shapes))
        except SpecError:
            refused += 1
    assert refused > 20


def test_a_folder_of_shards_is_one_file_of_weights(tmp_path):
    halves = {"one.safetensors": ["a.weight"], "two.safetensors": ["a.steps"]}
    for file, names in halves.items():
        save_file({name: TENSORS[name] for name in names}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, names in halves.items() for name in names}}))
    with open_weights(tmp_path) as opened:
        assert dict(opened.shapes) == {"a.weight": (2, 3), "a.steps": ()}
        assert all(torch.equal(opened.read(name), tensor) for name, tensor in TENSORS.items())
    for listed, message in (
        ({"a.weight": "three.safetensors"}, "three.safetensors cannot be read"),
        ({}, r"has neither weights\.safetensors nor"),
    ):
        index.write_text(json.dumps({"weight_map": listed}))
        with pytest.raises(SpecError, match=message), open_weights(tmp_path):
            pass
    index.unlink()
    with pytest.raises(SpecError, match=r"has neither weights\.safetensors nor"), open_weights(tmp_path):
        pass
