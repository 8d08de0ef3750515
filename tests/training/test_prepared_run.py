"""Everything that a run refuses, it refuses before it starts, all at once and located."""

from __future__ import annotations

import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.training.prepare import fix_arithmetic, prepare
from petra_graph.training.run_record import outline
from tests.support.runs import MICRO_BATCHES, SPEC, UPDATES


@pytest.fixture
def told(write):
    def problems(text: str, *overrides: str) -> list[str]:
        with pytest.raises(SpecError) as caught:
            prepare(write("small.toml", text), overrides)
        return [f"{problem.where}: {problem.message}" for problem in caught.value.problems]

    return problems


def test_the_outline_of_a_run(write):
    assert outline(prepare(write("small.toml", SPEC))) == {
        "name": "small",
        "nodes": 4,
        "stages": 4,
        "parameters": 2434,
        "method": "petra",
        "schedule": "1f1b",
        "accumulation": 3,
        "devices": ["cpu"],
        "training samples": 1438,
        "test samples": 359,
        "micro-batches": 2 * MICRO_BATCHES,
        "updates": 2 * UPDATES,
    }


def test_problems_of_all_kinds_come_together(told):
    text = SPEC.replace("features = 12", "features = 12, streams = 1") + '[partition]\ndevices = ["cuda:7"]\n'
    assert told(text, "data.batch=5000") == [
        'small.toml:8: node "rev.0": block "rev-mlp" reads 2 streams, and its inputs carry 1',
        'small.toml:35: device "cuda:7" does not exist here',
        "--set data.batch=5000: batch must be at most the 1,438 samples of the training data (got 5000)",
    ]


def test_on_cuda_kernels_are_deterministic_and_nothing_is_filled_for_it(write, monkeypatch):
    """Torch would fill pinned memory before each copy into it, while the host waits."""
    prepared = prepare(write("small.toml", SPEC))
    monkeypatch.setattr(type(prepared), "on_cuda", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    filled = torch.utils.deterministic.fill_uninitialized_memory
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        fix_arithmetic(prepared)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert products_in_tf32() == {True}
        fix_arithmetic(prepare(write("small.toml", SPEC), ["precision.fp32_precision=ieee"]))
        assert products_in_tf32() == {False}
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def products_in_tf32():
    return {torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32}
