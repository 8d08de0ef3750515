"""Micro-batches of an epoch."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve

from petra_graph.errors import Problem, RunFailed
from petra_graph.spec.model import DataSpec, PartitionSpec, RunSpec, Spec
from petra_graph.training.data import Loaders, OpenedData, order

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on machines with one core


class Numbers:
    """A split whose samples are their own indices, with seed and epoch as target."""

    in_order = mixes = False
    fetch_targets = None

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def fetch(self, indices, *, seed, epoch, mixed):
        return torch.from_numpy(indices), torch.full((len(indices),), 1000 * seed + epoch)


class Broken(Numbers):
    def fetch(self, indices, *, seed, epoch, mixed):
        raise RunFailed(Problem(message="0.jpg cannot be decoded", hint="remove it", path=("data", "options", "root")))


class Images(Numbers):
    """Each laid out as convolutions read it, and augmented by seed and epoch."""

    def fetch(self, indices, *, seed, epoch, mixed):
        drawn = np.random.default_rng([seed, epoch, *indices]).random((len(indices), 3, 4, 4))
        return torch.from_numpy(drawn).to(memory_format=torch.channels_last), torch.from_numpy(indices)


def opened(split, *, batch=4, seed=0, workers=0, limit=100, replicas=1, **options):
    """What is read of a data set whose training split this is."""
    run, partition = RunSpec(seed=seed, micro_batches=limit), PartitionSpec(replicas=replicas)
    spec = Spec(data=DataSpec(name="digits", batch=batch), run=run, partition=partition)
    loaders = Loaders(workers, (split,))
    return OpenedData(
        spec=spec, facts=None, train=split, validation=None, test=split, **{"loaders": loaders, **options}
    )


def training(split, epoch=0, **options):
    return opened(split, **options).epoch(epoch)


def evaluation(split, batch=4, **options):
    data = opened(split, batch=batch, **options)
    return data.evaluation(split)


def indices(batches):
    return [samples.tolist() for samples, _ in batches]


def test_evaluation_meets_every_sample_in_order():
    batches = evaluation(Numbers(10))
    assert indices(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(batches.parts) == 3


def test_the_order_is_frozen():
    # Another order would change every recorded run.
    expected = [[2, 4, 3, 6, 5, 0, 1, 7], [1, 3, 7, 6, 0, 4, 2, 5], [5, 0, 1, 4, 2, 6, 3, 7]]
    assert expected == [order(8, seed, epoch).tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0))]


def test_an_epoch_leaves_out_what_fills_no_micro_batch_and_what_is_behind_its_limit():
    visited = order(23, 7, 2).tolist()
    whole = [visited[start : start + 4] for start in range(0, 20, 4)]
    assert indices(training(Numbers(23), 2, seed=7)) == whole
    assert {at for _, targets in training(Numbers(23), 2, seed=7) for at in targets.tolist()} == {7002}
    assert indices(training(Numbers(23), 2, seed=7, limit=2)) == whole[:2]
    assert indices(opened(Numbers(23), seed=7).epoch(2, 3)) == whole[3:], "as where a run is resumed"


def test_an_epoch_has_one_length_in_a_run():
    split = Numbers(12)
    data = opened(split)
    lengths = [data.length]
    split.n = 20  # as of a Dataset that is told the epoch
    assert [*lengths, data.length, len(data.epoch(1).parts)] == [3, 3, 3]


def test_workers_change_nothing():
    alone, shared = (list(training(Images(23), epoch=3, workers=n)) for n in (0, 2))
    assert len(alone) == len(shared) == 5
    for (one, target), (other, other_target) in zip(alone, shared, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(target, other_target)
        assert one.stride() == other.stride()
        assert other.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_draws_nothing_from_the_process_generators(workers):
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    list(training(Numbers(8), workers=workers))
    assert torch.equal(expected, torch.get_rng_state())


class Processes(Numbers):
    """Samples that are the loader process."""

    def fetch(self, indices, *, seed, epoch, mixed):
        return torch.full((len(indices),), os.getpid()), torch.from_numpy(indices)


@pytest.mark.processes
def test_the_same_processes_load_all_epochs_and_evaluations():
    """They were forked anew for every epoch, and for every evaluation; an epoch may be abandoned, and comes from its start."""
    train, test = Processes(8), Processes(4)
    with closing(Loaders(2, (train, test))) as loaders:
        data = evolve(opened(train, batch=2), loaders=loaders)
        first = {pid for samples, _ in data.epoch(0) for pid in samples.tolist()}
        assert len(first) == 2
        assert os.getpid() not in first
        with closing(iter(data.epoch(1))) as abandoned:
            next(abandoned)
        read = list(evaluation(test, batch=2, loaders=loaders))
        assert [targets.tolist() for _, targets in read] == [[0, 1], [2, 3]]
        again = list(data.epoch(1))
        assert [row for _, targets in again for row in targets.tolist()] == order(8, 0, 1).tolist()
        assert {pid for samples, _ in (*read, *again) for pid in samples.tolist()} == first
    for _ in range(500):
        if not any(Path(f"/proc/{pid}").exists() for pid in first):
            return
        time.sleep(0.02)
    pytest.fail("the processes outlive their loaders")


class OfFile(Numbers):
    """Samples that are sought and read in one file, which the first process has opened."""

    def __init__(self, n, path):
        super().__init__(n)
        path.write_bytes(bytes(range(n)))
        self.file = path.open("rb", buffering=0)

    def fetch(self, indices, *, seed, epoch, mixed):
        self.file.seek(int(indices[0]))
        time.sleep(0.002)
        return torch.tensor(list(self.file.read(1))), torch.from_numpy(indices)


@pytest.mark.processes
def test_processes_do_not_share_the_position_in_a_file(tmp_path):
    split = OfFile(100, tmp_path / "rows.bin")
    with closing(Loaders(3, (split,))) as loaders:
        read = list(training(split, batch=1, loaders=loaders))
    split.file.close()
    assert all(torch.equal(samples, targets) for samples, targets in read)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_of_a_terminal_are_for_the_parent(number):
    """A terminal that is closed sends SIGHUP to all its processes: a loader died of it, and the run failed instead of stopping."""
    loaders = Loaders(1, (Processes(8),))
    with closing(loaders):
        batches = iter(training(loaders._splits[0], batch=2, loaders=loaders))
        samples, _ = next(batches)
        os.kill(int(samples[0]), number)
        assert len(list(batches)) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_keep_their_problems(workers):
    with pytest.raises(RunFailed) as caught:
        list(training(Broken(8), workers=workers))
    expected = Problem(message="0.jpg cannot be decoded", hint="remove it", path=("data", "options", "root"))
    assert caught.value.problems == (expected,)


# --- parts of a micro-batch -------------------------------------------------------------------------------------------


def test_replicas_share_the_rows_of_a_micro_batch():
    """Replica r takes rows rB to (r+1)B of the micro-batch of size RB."""
    split, replicas = Numbers(40), 3
    whole = indices(training(split, batch=4 * replicas))
    shares = [training(split, batch=4, replica=replica, replicas=replicas) for replica in range(replicas)]
    assert [[row for share in rows for row in share] for rows in zip(*map(indices, shares), strict=True)] == whole
    assert all(list(map(len, share.parts)) == [4] * len(whole) for share in shares)


class Decoded(Numbers):
    def fetch_targets(self, indices):
        return torch.from_numpy(indices)

    def fetch(self, indices, *, seed, epoch, mixed):
        raise AssertionError("an image is decoded")


def test_the_head_s_process_gets_targets_and_decodes_no_image():
    read = list(evaluation(Decoded(7), part="targets"))
    assert [targets.tolist() for _, targets in read] == [[0, 1, 2, 3], [4, 5, 6]]
    assert all(samples.numel() == 0 for samples, _ in read)
    assert list(evaluation(Decoded(7), part="nothing")) == []


class Mixing(Numbers):
    mixes = True

    def fetch_targets(self, indices):
        raise AssertionError("targets of mixed samples follow from the samples")

    def fetch(self, indices, *, mixed, **at):
        samples, targets = super().fetch(indices, mixed=mixed, **at)
        return (samples.roll(1), targets + 0.5) if mixed else (samples, targets)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("part", ["all", "targets"])
def test_micro_batches_of_a_training_are_mixed(workers, part):
    plain, split = training(Numbers(10), seed=2), Mixing(10)
    mixed = training(split, seed=2, workers=workers, part=part)
    assert [samples.roll(-1).tolist() for samples, _ in mixed] == indices(plain)
    assert {target for _, targets in mixed for target in targets.tolist()} == {2000.5}
    assert indices(evaluation(split)) == indices(evaluation(Numbers(10)))
    mixed.data.loaders.close()
