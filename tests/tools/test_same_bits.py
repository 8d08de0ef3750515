"""Two commits that compute the same are equal, and whatever differs by a bit is reported."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tools import same_bits

WEIGHTS = {"stem/weight": torch.arange(6.0).reshape(2, 3), "head/bias": torch.ones(2, dtype=torch.bfloat16)}
EVENTS = (
    {"time": 1.0, "epoch": 1, "step": 2, "name": "train/loss", "value": 0.1},
    {"time": 1.0, "epoch": 1, "step": 2, "name": "samples_per_second", "value": 10.0},
    {"time": 1.0, "epoch": 1, "step": 2, "name": "test/loss", "value": None},
)


@pytest.fixture
def left(tmp_path):
    """Write what a training leaves, and read it as the tool does."""

    def read(weights=WEIGHTS, events=EVENTS, code=0):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        run = place / "runs/1"
        run.mkdir(parents=True)
        save_file(weights, run / "weights.safetensors")
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        return same_bits.result(place, code)

    return read


LATER = [{**EVENTS[0], "time": 2.0}, {**EVENTS[1], "value": 20.0}, EVENTS[2]]
ONE_BIT = {**WEIGHTS, "head/bias": torch.tensor([1.0, 1.0078125]).bfloat16()}
ANOTHER_LOSS = ({**EVENTS[0], "value": 0.1 + 2**-56}, *EVENTS[1:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"events": LATER}, []),
        ({"weights": ONE_BIT}, ["1 of 2 weights, first "]),
        ({"events": ANOTHER_LOSS}, ["1 of 2 metrics, first train/loss of epoch 1"]),
    ],
)
def test_what_differs_is_reported(left, changes, said):
    found = list(same_bits.different(left(), left(**changes)))
    assert len(found) == len(said)
    assert all(map(str.startswith, found, said))
