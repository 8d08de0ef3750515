"""The depths and words of split backwards: the least depths at full throughput, and the best words for given depths.

The parts of each stage's backward are given (`compiler.worthwhile_parts`); where the forward stands among them is found here. A stage's
word says when its activation and its gradient leave, so a deeper stage here may spare depth in all stages before it.
From the head on, every stage is added to each choice of depths and words for the stages after it, with every word, and with the
least depth with which all of them keep up with the tick. Equal stages whose F, R, I and W take 1 each, k = 1, free links:

    stages                                4    8   16
    depth of the first, `1f1b`            4    8   16
    depth of the first, split backwards   3    6   11

The stages before see of a choice only its response: how long after the forward of a micro-batch begins in a stage that reads
from them, R and I of that micro-batch begin in such stages (a longest path in the precedence graph, less the tick for every period on
it). So a choice whose depths have no smaller sum and whose responses are no shorter than another's is left out.

    one stage a device   the least sum of depths over all choices, as long as no more than `_WIDEST` are kept at a stage;
                         updates are spread evenly over a window, and depths raised where this loses throughput
    several              every word begins with the forward, and depths are tried by simulation

More depth than the least never helps: a stage's R and I come after forwards that its depth puts before them.

Decision: at most one micro-batch is between R and W in a stage. With two, a first stage of 16 would be 8 updates late and not 10, for a
copy of the parameters and a second gradient buffer; from 15 to 10 is what one graph gives, and a GPT that trains with Muon gains a
hundredth of a nat by it (tools/README.md, "Corrections of late gradients").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from attrs import evolve, frozen

from petra_graph.compiler.simulator.least_depths import TOLERANCE, least_depths, raised_to_keep_up, with_spread_updates
from petra_graph.compiler.simulator.pipeline import Pipeline, TimedStage
from petra_graph.compiler.simulator.precedence import StartNode, precedence_graph
from petra_graph.compiler.simulator.steady_state import keeps_up, tick, unbounded_tick, work_seconds
from petra_graph.program.channels import Verb
from petra_graph.program.schedule import arrangements
from petra_graph.spec.model import Word

_WIDEST = 32
"""Choices kept at a stage."""
_DEEPEST = 10_000
"""A stage that does not keep up with this depth has a word with which it never does."""
_ROUNDING = 1e-11
"""Of longest paths, relative to a tick."""
_ANSWERS: tuple[Verb, ...] = ("reconstruct", "input_gradient", "backward")


class Orders(NamedTuple):
    """The order of every stage."""

    depths: tuple[int, ...]
    words: tuple[Word, ...]


def with_orders(pipeline: Pipeline, orders: Orders) -> Pipeline:
    """Return the same pipeline with other depths and words."""
    stages = zip(pipeline.stages, *orders, strict=True)
    return evolve(pipeline, stages=tuple(evolve(stage, depth=depth, word=word) for stage, depth, word in stages))


def least_orders(pipeline: Pipeline, words: Sequence[Word] | None = None, tolerance: float = TOLERANCE) -> Orders:
    """Return depths of the least sum that keep full throughput, with the words that do.

    Args:
        pipeline: costs, edges, devices, and words for their parts; its own depths and capacities are ignored.
        words: of all stages, of the same parts; None: the best.
        tolerance: of the throughput, which may be lost.
    """
    unbounded = pipeline.with_capacity({})
    given = _plain(pipeline) if words is None else tuple(words)
    if not pipeline.one_stage_a_device:
        shared = with_orders(unbounded, Orders(tuple(stage.depth for stage in pipeline.stages), given))
        return Orders(least_depths(shared, tolerance), given)
    seconds = unbounded_tick(unbounded) * (1 + tolerance)
    allowed = [arrangements(word) if words is None else (word,) for word in given]
    found = _found(with_spread_updates(unbounded), seconds, allowed)
    if found is None and words is not None:  # These words cannot keep up at any depth, as devices overlap.
        seconds = _least_seconds(
            unbounded, lambda bound: _found(with_spread_updates(unbounded), bound, allowed) is not None
        )
        found = _found(with_spread_updates(unbounded), seconds, allowed)
    assert found is not None
    chosen = with_orders(unbounded, found)
    if unbounded.accumulation > 1 and not keeps_up(chosen, seconds):
        return Orders(raised_to_keep_up(chosen, seconds), found.words)
    return found


def best_words(pipeline: Pipeline, tolerance: float = TOLERANCE) -> tuple[Word, ...]:
    """Return the words with which the depths of a pipeline have the shortest tick, as far as `tolerance` tells ticks apart."""
    depths, plain = tuple(stage.depth for stage in pipeline.stages), _plain(pipeline)
    unbounded = with_orders(pipeline.with_capacity({}), Orders(depths, plain))
    if not pipeline.one_stage_a_device:
        return plain
    spread = with_spread_updates(unbounded)
    allowed = [arrangements(word) for word in plain]
    low, high, words = max(work_seconds(spread).values()), tick(spread).seconds, plain
    trial = low * (1 + tolerance)
    while high > low * (1 + tolerance):
        found = _found(spread, trial, allowed, depths)
        if found is None:
            low = trial
        else:
            words, high = found.words, trial
        trial = (low + high) / 2
    best = with_orders(unbounded, Orders(depths, words))
    return words if tick(best).seconds <= tick(unbounded).seconds else plain


def _plain(pipeline: Pipeline) -> tuple[Word, ...]:
    """Return the words of the same parts that begin with the forward."""
    return tuple(arrangements(stage.word)[0] for stage in pipeline.stages)


def _least_seconds(pipeline: Pipeline, keeps: Callable[[float], bool]) -> float:
    """Return the shortest tick that is kept, up to the tolerance."""
    low = high = max(work_seconds(pipeline).values())
    while not keeps(high):
        low, high = high, 2 * high
    while high > low * (1 + TOLERANCE):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


@frozen(kw_only=True)
class _Choice:
    """Orders of the stages from some position to the head."""

    stages: Mapping[int, TimedStage]
    response: Mapping[tuple[StartNode, StartNode], float]
    """From the start of a forward to those of R, I and B, in stages that read from others not yet chosen."""

    @property
    def total(self) -> int:
        return sum(stage.depth for stage in self.stages.values())

    def no_worse_than(self, other: _Choice, slack: float) -> bool:
        return self.total <= other.total and all(
            seconds <= other.response.get(ends, -inf) + slack for ends, seconds in self.response.items()
        )


def _found(
    pipeline: Pipeline, seconds: float, allowed: Sequence[Sequence[Word]], depths: Sequence[int] | None = None
) -> Orders | None:
    """Return the orders of the least sum of depths that keep up with a tick of `seconds`; None: no choice does.

    Args:
        pipeline: with one stage a device, and a period of one micro-batch.
        seconds: of the tick.
        allowed: the words from which each stage's is chosen.
        depths: as they must be; None: the least.
    """
    choices = [_Choice(stages={}, response={})]
    slack = _ROUNDING * seconds
    for position in range(len(pipeline.stages) - 1, -1, -1):
        stage = pipeline.stages[position]
        depth = 1 if stage is pipeline.head else None if depths is None else depths[position]
        candidates = [
            candidate
            for choice in choices
            for word in (allowed[position] if stage is not pipeline.head else allowed[position][:1])
            if (candidate := _extended(pipeline, choice, evolve(stage, word=word), depth, seconds)) is not None
        ]
        candidates.sort(key=lambda each: (each.total, sum(each.response.values())))
        choices = []
        for candidate in candidates:
            if not any(kept.no_worse_than(candidate, slack) for kept in choices):
                choices.append(candidate)
        choices = choices[:_WIDEST]
        if not choices:
            return None
    chosen = [choices[0].stages[stage.index] for stage in pipeline.stages]
    return Orders(tuple(stage.depth for stage in chosen), tuple(stage.word for stage in chosen))


def _extended(
    pipeline: Pipeline, choice: _Choice, stage: TimedStage, depth: int | None, seconds: float
) -> _Choice | None:
    """Return a choice with one stage more, at its least depth or at the given one; None: they do not keep up."""
    least = _least_legal_depth(pipeline, choice, stage)

    def at(depth: int) -> _Choice | None:
        return _with_stage(pipeline, choice, evolve(stage, depth=depth), seconds)

    if depth is not None:
        return at(depth) if depth >= least else None
    step = 1
    low = least - 1
    while at(low + step) is None:
        low, step = low + step, 2 * step
        if low > _DEEPEST:
            return None
    return at(low + 1 + bisect_left(range(low + 1, low + step), True, key=lambda deep: at(deep) is not None))


def _least_legal_depth(pipeline: Pipeline, choice: _Choice, stage: TimedStage) -> int:
    """Return the least depth with which a stage does not wait for ever for those after it."""
    depth = 1 if stage.word[0] == "F" else 2
    for key, timing in pipeline.channels.items():
        if key.direction != "forward" and timing.receiver == stage.index:
            ahead = stage.verb_depth(timing.read_by) - stage.depth
            depth = max(depth, choice.stages[timing.sender].verb_depth(timing.sent_by) - ahead)
    return depth


def _with_stage(pipeline: Pipeline, choice: _Choice, stage: TimedStage, seconds: float) -> _Choice | None:
    """Return a choice with one stage more; None: with it, the stages do not keep up with a tick of `seconds`."""
    stages = {**choice.stages, stage.index: stage}
    near = frozenset((stage.index, *pipeline.graph.successors(stage.index)))
    known = evolve(pipeline, stages=tuple(stages.get(each.index, each) for each in pipeline.stages))
    longest: dict[tuple[StartNode, StartNode], float] = dict(choice.response)
    for before, after, duration, periods in precedence_graph(known, near).edges:
        longest[before, after] = max(longest.get((before, after), -inf), duration - seconds * periods)
    reached = _longest_paths(longest, _ROUNDING * seconds)
    if reached is None:
        return None
    waiting = {index for index in stages if any(before not in stages for before in pipeline.graph.predecessors(index))}
    response = {
        (before, after): length
        for (before, after), length in reached.items()
        if before.verb == "forward"
        and after.verb in _ANSWERS
        and before.channel is after.channel is None
        and {before.stage, after.stage} <= waiting
    }
    return _Choice(stages=stages, response=response)


def _longest_paths(
    edges: Mapping[tuple[StartNode, StartNode], float], slack: float
) -> Mapping[tuple[StartNode, StartNode], float] | None:
    """Return the longest path between each two nodes; None: there is a cycle longer than `slack`."""
    nodes = list(dict.fromkeys(node for ends in edges for node in ends))
    number = {node: place for place, node in enumerate(nodes)}
    longest = [[-inf] * len(nodes) for _ in nodes]
    for (before, after), length in edges.items():
        longest[number[before]][number[after]] = length
    for through, onward in enumerate(longest):
        for row in longest:
            first = row[through]
            if first > -inf:
                for place, second in enumerate(onward):
                    row[place] = max(row[place], first + second)
        if any(row[place] > slack for place, row in enumerate(longest)):
            return None
    return {
        (before, after): length
        for before, row in zip(nodes, longest, strict=True)
        for after, length in zip(nodes, row, strict=True)
        if length > -inf
    }
