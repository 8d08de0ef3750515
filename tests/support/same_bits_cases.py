"""Trainings that several processes must compute to the same bits as one, and one process's part of each.

`main([OUTPUT, CASE, ...])` is such a process; torchrun's variables say which one. It goes through the cases, so that one launch serves them
all, and writes the digest of everything that its stages hold at the end of each.
"""

import hashlib
import json
import os
import random
import resource
import time
from collections.abc import Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, get_args

import torch
from attrs import field, frozen

from petra_graph.executor.head import HeadResult
from petra_graph.program.schedule import Policy, Verb
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import open_channels
from petra_graph.runtime.store import rank_info_from
from petra_graph.runtime.system import hard_exit
from petra_graph.runtime.watchdog import Watchdog
from petra_graph.runtime.world import World
from petra_graph.spec.model import ClipSpec, Transport
from tests.support.pipelines import BRANCHES, CLASSES, Batch, Pipeline, node, pipeline

EPOCHS = 2
MICRO_BATCHES = 5
"""In an epoch."""
BATCH, EVALUATION_BATCH, TESTS = 4, 3, 7
"""Samples; the last evaluation batch has one."""
STALLED_SECONDS = 30.0
LONGEST_DELAY_SECONDS = 0.003

EVERYTHING = (
    node("stem", "conv-stem", channels=4),
    node("a0", "rev-basic", dropout=0.2),
    node("a1", "rev-basic", dropout=0.2),
    node("join", "add", inputs=["a1", "a0"]),
    node("down", "down-basic", channels=6, stride=2),
    node("b0", "rev-basic"),
    node("head", "pool-linear", outputs=CLASSES),
)
"""Batch normalisation, dropout, a skip edge."""
CUTS = (("stem", "a0"), ("a1",), ("join", "down"), ("b0", "head"))


@frozen
class Case:
    """One training."""

    settings: dict[str, Any]
    """Of `pipeline`."""
    processes: int = 4
    nodes: tuple[Any, ...] = field(default=EVERYTHING, kw_only=True)
    shape: tuple[int, ...] = field(default=(3, 6, 6), kw_only=True)
    ranks: tuple[int, ...] = field(default=(), kw_only=True)
    """The process of each stage; (): processes have as many as another or one more."""
    transport: Transport = field(default="auto", kw_only=True)
    policy: Policy = field(default="arrival", kw_only=True)
    delayed: bool = field(default=False, kw_only=True)
    """Whether random operations of random stages sleep before they begin."""

    @property
    def computation(self) -> str:
        """What one process would compute; what follows in `name` may change none of its bits."""
        settings = {**self.settings, "stages": "cuts" if "stages" in self.settings else "per-block"}
        return " ".join([f"{len(self.nodes)} nodes", *(f"{key}={value}" for key, value in settings.items())])

    @property
    def name(self) -> str:
        how = [f"{self.processes} processes", self.transport, self.policy, *["delayed"] * self.delayed]
        return " ".join([self.computation, *how])

    def built(self) -> Pipeline:
        usual = {"compute": "float32", "momentum": 0.9, "batch": BATCH, "evaluation_batch": EVALUATION_BATCH}
        return pipeline(self.nodes, self.shape, policy=self.policy, **{**usual, **self.settings})


FEW_BITS = {stored: {"channel_dtype": stored, "buffer_dtype": stored} for stored in ("bfloat16", "int8")}
LATE: dict[str, Any] = {"schedule": "1f1b"}
CLIPPED = ClipSpec(by="norm", limit=0.1, scope="global")
GROUP: dict[str, Any] = {"transport": "process-group"}
STATIC: dict[str, Any] = {"policy": "static"}
CASES = {
    case.name: case
    for case in (
        Case({"method": "backprop", "accumulation": 4, "stages": CUTS}, **GROUP, **STATIC, delayed=True),
        Case({"method": "gpipe"}, 2, transport="nccl", **STATIC, delayed=True),
        Case({"method": "pipedream", "schedule": "lockstep"}, **GROUP, delayed=True),
        Case({"method": "dsp", "schedule": "lockstep", "accumulation": 4, "stages": CUTS}, 2, **STATIC),
        Case({"method": "delayed-reconstructed", "schedule": "lockstep", "accumulation": 4, "stages": CUTS}, **GROUP),
        # The skip edge passes over a process.
        Case({"schedule": "lockstep", "accumulation": 4}, ranks=(0, 0, 1, 2, 2, 3, 3), delayed=True),
        Case({**LATE, "accumulation": 4}, 2, **STATIC, delayed=True),
        Case({"schedule": (9, 5, 5, 3, 3, 2, 1), "accumulation": 4}, delayed=True),
        Case({"schedule": (4, 3, 3, 3, 2, 1), "accumulation": 3}, 2, nodes=BRANCHES, shape=(8,), delayed=True),
        # What nodes keep beside other parameters than the forward's, beside the forward's, and beside those of both.
        Case({**LATE, "settings": {"keep": {"a0": "input", "b0": "graph"}}, "stages": CUTS}, 2, delayed=True),
        Case(
            {
                **LATE,
                "accumulation": 2,
                "settings": {"keep": dict.fromkeys(("stem", "a1", "down"), "graph"), "allow_stored": True},
                "stages": CUTS,
            },
            2,
            delayed=True,
        ),
        Case(
            {
                "method": "1f1b-flush",
                "accumulation": 3,
                "settings": {"keep": {"a0": "nothing", "a1": "input", "join": "input", "down": "graph"}},
                "stages": CUTS,
            },
            2,
        ),
        Case({"compute": "bfloat16", "memory_format": "contiguous"}, 2),
        Case({**LATE, "precision": FEW_BITS["bfloat16"]}, 2, delayed=True),
        Case({**LATE, "precision": FEW_BITS["int8"], "stages": CUTS}, **GROUP, delayed=True),
        Case({"method": "reversible-backprop", "clip": CLIPPED, "accumulation": 4}),
        # Its steps depend on how late the gradients of the open window are, and how many.
        Case({**LATE, "accumulation": 3, "correction": "spike"}, 2),
    )
}
"""Every method, schedule, transport, policy and precision, shared by two and by four processes."""
COMPUTED = {case.computation: case for case in CASES.values()}
"""A case of each computation."""
USUAL = list(COMPUTED)


def samples(shape: tuple[int, ...], sizes: Sequence[int], seed: int) -> list[Batch]:
    """Batches of these sizes; of one in three, the first target is passed over."""
    generator, made = torch.Generator().manual_seed(seed), list[Batch]()
    for number, size in enumerate(sizes):
        made.append(
            (torch.randn(size, *shape, generator=generator), torch.randint(CLASSES, (size,), generator=generator))
        )
        made[-1][1][: number % 3 == 1] = -100
    return made


def train(case: Case, runtime: Any, first: int = 0, at: int | None = None) -> list[float]:
    """Train and evaluate from an epoch on, or from a cut in it; return all that the head said, as it said it."""
    said: list[HeadResult] = []
    for epoch in range(first, EPOCHS):
        micro_batches = range(epoch * MICRO_BATCHES, (epoch + 1) * MICRO_BATCHES)
        done = 0 if at is None else at - micro_batches.start
        data = samples(case.shape, [BATCH] * MICRO_BATCHES, seed=epoch)
        runtime.train(data[done:], micro_batches, said.append, at)
        at = None
        sizes = [EVALUATION_BATCH] * (TESTS // EVALUATION_BATCH) + [1]
        said += runtime.evaluate(samples(case.shape, sizes, seed=99), sizes)
    return [float(result.loss) for result in said]


def held(executors: Sequence[Any], said: list[float]) -> dict[str, str]:
    """Return the digest of each node's parameters and statistics, and of what the head said."""
    found = {
        name: hashlib.sha256(b"".join(value.numpy().tobytes() for value in module.state_dict().values())).hexdigest()
        for executor in executors
        for name, module in executor.modules.items()
    }
    return {**found, "losses": " ".join(map(float.hex, said))} if said else found


@cache
def alone(computation: str) -> dict[str, str]:
    """Return what one process holds, computed once for all cases and tests."""
    case = COMPUTED[computation]
    built = case.built()
    return held(built.executors, train(case, built.runtime))


def delay(executors: Sequence[Any], key: str) -> None:
    """Let some of the operations of some stages begin late; numbers come from a generator of their own."""
    dice = random.Random(key)

    def late(operation: Any) -> Any:
        @wraps(operation)
        def begin_late(*arguments: Any) -> Any:
            if dice.random() < 0.3:
                time.sleep(dice.random() * LONGEST_DELAY_SECONDS)
            return operation(*arguments)

        return begin_late

    for executor in executors:
        if dice.random() < 0.7:
            for verb in get_args(Verb):
                setattr(executor, verb, late(getattr(executor, verb)))


def in_this_process(case: Case, world: World, watchdog: Watchdog) -> dict[str, str]:
    """Do this process's part of a case."""
    built = case.built()
    programs = built.programs
    places = case.ranks or tuple(index * world.size // len(programs) for index in range(len(programs)))
    own = [executor for executor, rank in zip(built.executors, places, strict=True) if rank == world.rank]
    if case.delayed:
        delay(own, f"{world.rank} {case.name}")
    channels = open_channels(programs, places, world, watchdog, transport=case.transport)
    world.wait_for_all("channels")
    runtime = Scheduler(own, channels, supervisor=watchdog, policy=case.policy)
    said = train(case, runtime)
    world.wait_for_all("trained")  # a channel that is gone sends nothing more
    assert not runtime._feed.targets, "targets that no stage takes would pile up"
    return held(own, said)


def main(words: Sequence[str]) -> None:
    output, *names = words
    torch.set_num_threads(1)
    # Channels of finished cases keep their descriptors until the process ends.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    place = rank_info_from(os.environ)
    assert place is not None
    world = World(place)
    world.rendezvous()
    world.connect()
    watchdog = Watchdog(world)
    watchdog.limit_seconds = STALLED_SECONDS
    watchdog.on_stuck = lambda failure: hard_exit(failure.exit_code)
    found, store = {}, world.store
    for name in names:
        world.store = store.beside(name)
        found[name] = in_this_process(CASES[name], world, watchdog)
    Path(output, f"rank{place.rank}.json").write_text(json.dumps(found))
    world.wait_for_all("cases")
    watchdog.close()
    world.wait_for_all("processes")
    hard_exit(0)
