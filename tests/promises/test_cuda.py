"""What must hold on a GPU, and between a GPU and the CPU; skipped where there is none."""

import os

import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.training.checkpoint import restore_at_cut
from petra_graph.training.prepare import record
from tests.support.forks import SPEC
from tests.support.kept_cut import KeptCut
from tests.support.pipelines import GRAPHS, REVNET, SHAPES, batches, pipeline, relative_error, same_bits
from tests.support.runs import only_run, weights_bytes

# Torch reads this once, at the process's first product of matrices, whether or not that is to be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

FLOAT64_ACROSS_DEVICES = 1e-9


def trained(graph, count, recorded=False, **settings):
    """Return the parameters and statistics, on the CPU, of a pipeline that has trained so many micro-batches, maybe by graphs."""
    built = pipeline(GRAPHS[graph], SHAPES[graph], **settings)
    if recorded:
        record(built.executors[:-1], "graphs", compiled=False)
    built.train(batches(SHAPES[graph], count))
    return {key: value.cpu() for key, value in built.parameters().items()}


IN_FEW_BITS = [{"precision": {"channel_dtype": stored}} for stored in ("bfloat16", "int8")]


@pytest.mark.parametrize("devices", [("cuda:0",), ("cpu", "cuda:0"), ("cuda:0", "cpu")])
@pytest.mark.parametrize("how", [*({"schedule": one} for one in ("sequential", "1f1b", "lockstep")), *IN_FEW_BITS])
def test_any_mix_of_devices_gives_the_cpus_numbers(devices, how):
    """What differs in its last bits in float64 is next to never rounded another way."""
    graph, count = ("chain", 6) if "precision" in how else ("revnet", 12)
    one, other = (trained(graph, count, devices=on, **how) for on in (("cpu",), devices))
    assert relative_error(other, one) < FLOAT64_ACROSS_DEVICES


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_same_seed_gives_the_same_bits_on_a_gpu():
    assert same_bits(*(trained("revnet", 12, compute="float32", devices=("cuda:0",)) for _ in range(2)))


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("stages", ["per-block", (("stem", "a0", "a1"), ("down", "b0", "head"))])
def test_graphs_have_the_bits_of_eager_execution(stages, compute, accumulation):
    """Running statistics are compared with the parameters."""
    settings = {"compute": compute, "stages": stages, "accumulation": accumulation, "schedule": "1f1b"}
    made = [pipeline(REVNET, SHAPES["revnet"], devices=("cuda:0",), **settings) for _ in range(2)]
    record(made[1].executors[: -1 if stages == "per-block" else None], "graphs", compiled=False)
    data = batches(SHAPES["revnet"], 20)
    for built in made:
        built.train(data)
    segments = [
        one.recorded for executor in made[1].executors for _, one in executor.runners if one.recorded is not None
    ]
    assert len(segments) == len(REVNET) - 1
    assert not any(one.off for passes in segments for one in passes)
    assert same_bits(*(built.parameters() for built in made))


@pytest.mark.usefixtures("deterministic")
def test_a_resumed_run_with_graphs_has_the_bits_of_an_uninterrupted_one_without():
    settings = {"devices": ("cuda:0",), "compute": "float32", "schedule": "1f1b", "accumulation": 3}
    data = batches(SHAPES["revnet"], 20)
    eager = pipeline(REVNET, SHAPES["revnet"], **settings)
    kept = eager.runtime.cuts = KeptCut(eager.programs, 10)
    eager.train(data)
    again = pipeline(REVNET, SHAPES["revnet"], **settings)
    record(again.executors[:-1], "graphs", compiled=False)
    for executor in again.executors:
        restore_at_cut(kept.copies_at[10][executor.program.index], executor, again.runtime)
    again.runtime.train(data[10:], range(20), lambda _: None, at=10)
    assert same_bits(eager.parameters(), again.parameters())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two processes need two CUDA devices")
@pytest.mark.parametrize("transport", ["auto", "process-group", "nccl"])
def test_two_processes_with_a_gpu_each_are_one_process_with_both(write, transport):
    write("shared.toml", SPEC)
    settings = ("--set", f"run.transport={transport}", "--set", "partition.stages=2")
    assert main(["run", "shared.toml", *settings, "--processes", "2", "--set", "run.directory=two"]) == 0
    devices = ("--set", "partition.devices=2")
    assert main(["run", "shared.toml", *settings, *devices, "--set", "run.directory=one"]) == 0
    assert weights_bytes(only_run("two")) == weights_bytes(only_run("one"))
