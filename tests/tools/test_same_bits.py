"""Two commits that compute the same are equal, and whatever differs by a bit is reported."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tools import same_bits
from tools.same_bits import Result

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


def differences(one: Result, other: Result, **how) -> list[str]:
    return list(same_bits.different(one, other, **how))


def test_times_alone_differ(left):
    later = [{**event, "time": 2.0} for event in EVENTS]
    later[1]["value"] = 20.0
    one, other = left(), left(events=later)
    assert differences(one, other) == []
    assert one.digest == other.digest


OTHERS = {
    "one bit": (
        {"weights": {**WEIGHTS, "head/bias": torch.tensor([1.0, 1.0078125]).bfloat16()}},
        "1 of 2 weights, first ",
    ),
    "a shape": ({"weights": {**WEIGHTS, "stem/weight": WEIGHTS["stem/weight"].reshape(3, 2)}}, "1 of 2 weights"),
    "signs of zero": ({"weights": {**WEIGHTS, "stem/weight": -WEIGHTS["stem/weight"]}}, "1 of 2 weights"),
    "a loss": (
        {"events": ({**EVENTS[0], "value": 0.1 + 2**-56}, *EVENTS[1:])},
        "1 of 2 metrics, first train/loss of epoch 1",
    ),
    "a repeated loss": ({"events": (*EVENTS, EVENTS[0])}, "1 of 3 metrics"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_reported(left, name):
    changes, expected = OTHERS[name]
    (said,) = differences(left(), left(**changes))
    assert said.startswith(expected)


def test_a_training_that_failed_equals_none_and_tensors_may_have_other_names(left):
    assert "OLD failed: exit code 2, 1 run directories" in differences(left(code=2), left(code=2))[0]
    nothing = Result(weights={}, metrics={})
    assert differences(nothing, nothing) == ["nothing was written"]
    one, other = left(), left({f"x/{name}": value for name, value in WEIGHTS.items()})
    assert len(differences(one, other)) == 1
    assert differences(one, other, by_value=True) == []
