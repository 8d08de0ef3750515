"""Weights to begin with: a run's own, or those of another program, which knows no nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from petra_graph.errors import SpecError
from petra_graph.plugins.callback import Listener
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from petra_graph.training.run_record import RunRecord
from tests.support.runs import SPEC

SHORT = ("run.epochs=1", "run.micro_batches=1")
# No two of its nodes have a tensor of one name.
TEXT = SPEC.replace("repeat = 2\n", "").replace(
    '"linear-stem"\noptions = { features', '"conv-stem"\noptions = { channels'
)


@pytest.fixture
def spec(write):
    return write("small.toml", TEXT)


def weights_of(spec, *changes):
    ended = run(spec, [*SHORT, *changes], Listener())
    return load_file(Path(ended.summary["directory"]) / "weights.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.toml").write_text(TEXT)
    return weights_of(str(folder / "small.toml"), f"run.directory={folder}/runs")


def parameters(weights):
    return {name: tensor for name, tensor in weights.items() if "running" not in name and "num_batches" not in name}


def begun(spec, *changes):
    return parameters(weights_of(spec, "optimizer.options.lr=0", *changes))


def test_a_state_dict_without_nodes_fits(spec, trained, tmp_path):
    torch.save({name.partition("/")[2]: tensor for name, tensor in trained.items()}, tmp_path / "own.pth")
    found = begun(spec, f"init.weights={tmp_path / 'own.pth'}")
    assert all(torch.equal(found[name], trained[name]) for name in found)


def test_a_resumed_run_does_not_say_that_its_weights_come_from_the_file(spec, trained, tmp_path):
    """They come from its checkpoint."""
    save_file(trained, tmp_path / "own.safetensors")
    prepared = prepare(spec, [*SHORT, f"init.weights={tmp_path / 'own.safetensors'}"])
    resumed = RunRecord(
        tmp_path,
        prepared,
        SimpleNamespace(manifest=SimpleNamespace(at=3), notes=["changed: run.epochs: 1 then, 2 now"]),
    )
    assert RunRecord(tmp_path, prepared).run.notes == (prepared.initial.said,)
    assert resumed.run.notes == ("changed: run.epochs: 1 then, 2 now",)


def test_what_is_left_out_begins_at_random(spec, trained, tmp_path):
    file = tmp_path / "some.safetensors"
    other = {name: tensor for name, tensor in trained.items() if not name.startswith("head/")}
    save_file({**other, "auxiliary.weight": torch.ones(2)}, file)
    random = begun(spec)
    found = begun(spec, f"init.weights={file}", 'init.leave_out=["head", "aux*"]')
    for name in found:
        assert torch.equal(found[name], (random if name.startswith("head/") else trained)[name])


def test_all_that_does_not_fit_is_said_in_one_sentence(spec, trained, tmp_path):
    file = tmp_path / "other.safetensors"
    names = list(trained)
    missing = next(name for name in names if name.startswith("stem/"))
    reshaped = next(name for name in names if name.startswith("head/") and trained[name].dim() == 2)
    changed = {name: tensor for name, tensor in trained.items() if name != missing}
    changed[reshaped] = torch.ones(7, 3)
    save_file({**changed, "x.weight": torch.ones(1), "y.weight": torch.ones(1)}, file)
    with pytest.raises(SpecError) as raised:
        prepare(spec, [f"init.weights={file}"])
    (problem,) = raised.value.problems
    assert problem.message == (
        f"{file} does not fit: not in the file: {missing}; of another shape: {reshaped} [7, 3] in the file, "
        f"{list(trained[reshaped].shape)} here; not in the network: x.weight, y.weight"
    )
    assert "init.leave_out" in problem.hint
    left = prepare(spec, [f"init.weights={file}", f'init.leave_out=["{missing}", "{reshaped}", "?.weight"]'])
    assert left.initial.fitting.keys() == trained.keys() - {missing, reshaped}


def test_a_name_that_several_nodes_have_belongs_to_none(write, tmp_path):
    spec = write("small.toml", SPEC)
    trained = weights_of(spec)
    torch.save({name.partition("/")[2]: tensor for name, tensor in trained.items()}, tmp_path / "foreign.pth")
    with pytest.raises(SpecError, match="in several nodes of the network: "):
        prepare(spec, [f"init.weights={tmp_path / 'foreign.pth'}"])
