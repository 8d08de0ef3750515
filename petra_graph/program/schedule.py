"""The order of operations: in one stage, where it follows from its depth, or over several stages.

Three stages, five micro-batches, `1f1b` (depths 3, 2, 1), accumulation 2:

    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U

A stage does `depth` forwards, then alternates backward and forward in micro-batch order, and finishes its backwards
when the data ends, at a drain. An update follows the backward that completes a window of k micro-batches, or the
drain's last backward. No operation is ever reordered, so timing has no effect. Windows are counted from the drain before,
also where the pipeline fills again in between, where a run is resumed under other stages.

    schedule     depth(j)       staleness   source
    lockstep     2(J-j) + 1     2(J-j)      PETRA equation (5)
    1f1b         J-j + 1        J-j         PipeDream, https://arxiv.org/abs/1806.03377
    sequential   1              0           the paper's basic model parallelism
    fill-drain   k              0           GPipe, https://arxiv.org/abs/1811.06965; flushed after each window

On a graph J-j is the longest path from stage j to the head's stage, counted in stages.

**Split backwards.** A stage may do its backward of m in parts: R reconstructs (or runs again) and sends the activation, I
computes and sends the gradient of the input, W computes the gradients of the parameters. B is what is left of a backward: I and W at
once behind an R, or all of it. R(m + 1) follows W(m) or B(m), and U where that ends a window, so all parts see one version of the
parameters, and what is computed follows from depths alone. A stage's order is its depth and a word, which says of what
parts its backward is, and where the one forward of a period stands, after depth - 1 forwards that fill the pipeline:

    FB      F(m+depth-1) B(m)              a whole backward: activation and gradient leave in one message
    FRIW    F(m+depth-1) R(m) I(m) W(m)    the order of whole backwards
    RFIW    R(m) F(m+depth-1) I(m) W(m)
    RIFW    R(m) I(m) F(m+depth-1) W(m)
    FRB     F(m+depth-1) R(m) B(m)
    RFB     R(m) F(m+depth-1) B(m)

Three stages, k = 1; equal units fill a tick of 4 without a pause, where `1f1b` needs the depths 3, 2, 1:

    stage 1   F0 R0 F1 I0 W0 U R1 F2 I1 W1 U R2 I2 W2 U    depth 2, RFIW
    stage 2   F0 R0 I0 F1 W0 U R1 I1 F2 W1 U R2 I2 W2 U    depth 2, RIFW
    stage 3   F0 R0 I0 W0 U F1 R1 I1 W1 U F2 R2 I2 W2 U    depth 1, FRIW; a head's R is empty

A stage reads an activation by its first part, and a gradient by the part that differentiates; a message that has both, by the first
one (`messages`). The depth of a verb (`verb_depth`) is how many forwards stand before it, beyond those of earlier micro-batches; the
stage's depth is that of W or B. A pipeline runs without deadlock if, along every channel to a producer, the depth of the consumer's verb
that sends is not above that of the producer's verb that reads. Proof: let the producer come to R(m), with the forwards up to m + d - 1
done. The consumer needs no more than those of them up to m + d' - 1, d' <= d, for its own R(m) and for all that comes before it in its
order: I and W of m - 1 stand no later than the forward m + d'. The same holds for I(m) and B(m), and at last for the head, which needs
nobody.

`static_order` gives one order for the operations of several stages: a pure function of their programs, free of
deadlock. Each stage keeps its own order. Of the stages whose next operation has its messages, and room for the messages
that it sends, the stage nearest to the head goes first. So every operation comes after all that it needs: a process
that performs its own part of this order waits only for operations that come before. An evaluation goes batch by batch,
each from the first stage to the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, get_args

from petra_graph.program.channels import Channel, Direction, Verb
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush, RequestedSchedule, Schedule, Word

DIRECTIONS: Final[Mapping[Verb, Direction]] = {
    "forward": "forward",
    "backward": "backward",
    "reconstruct": "activation",
    "input_gradient": "backward",
}
"""The channels on which a verb sends at its end. The other verbs have no messages."""
LETTERS: Final[Mapping[Verb, str]] = {
    "forward": "F",
    "backward": "B",
    "reconstruct": "R",
    "input_gradient": "I",
    "parameter_gradient": "W",
    "update": "U",
}
"""As people write them."""
_VERBS: Final[Mapping[str, Verb]] = {letter: verb for verb, letter in LETTERS.items()}
Policy = Literal["arrival", "static"]
"""When a process begins an operation: when its messages have arrived, or in the order of `static_order`."""


class Action(NamedTuple):
    """One operation of a stage; `micro_batch` counts from the run's start."""

    verb: Verb
    micro_batch: int

    def __str__(self) -> str:
        """Write as the tables above: F0, B0, R0, I0, W0, U."""
        return "U" if self.verb == "update" else f"{LETTERS[self.verb]}{self.micro_batch}"


def messages(producer: Word, consumer: Word, *, returns_activation: bool) -> Mapping[Direction, tuple[Verb, Verb]]:
    """Return the channels of an edge between two stages, by their words: the verb that sends on each, and the one that reads.

    Args:
        producer: the word of its stage.
        consumer: the same.
        returns_activation: whether the producer reconstructs from what this consumer returns.
    """
    first, differentiates = (_VERBS[next(one for one in letters if one in producer)] for letters in ("RB", "IB"))
    of_gradients = _VERBS[next(one for one in "IB" if one in consumer)]
    ahead = returns_activation and "R" in consumer
    together = returns_activation and not ahead
    return {
        "forward": ("forward", "forward"),
        **({"activation": ("reconstruct", first)} if ahead else {}),
        "backward": (of_gradients, first if together else differentiates),
    }


def verb_depth(verb: Verb, depth: int, word: Word) -> int:
    """Return d: a stage's operation `verb` on m comes after its forward m + d - 1, and before its forward m + d.

    Args:
        verb: any of the stage's but "forward" and "update".
        depth: of the stage.
        word: of the stage.
    """
    return depth if word.index("F") < word.index(LETTERS[verb]) else depth - 1


def period(word: Word) -> tuple[Verb, ...]:
    """Return the verbs of a period in their order: the forward is of m + depth - 1, the others of m."""
    return tuple(_VERBS[letter] for letter in word)


def arrangements(word: Word) -> tuple[Word, ...]:
    """Return the words of the same parts; the first one is that whose forward comes first."""
    return tuple(other for other in get_args(Word) if sorted(other) == sorted(word))


def depths(schedule: Schedule, distances: Sequence[int], accumulation: int) -> tuple[int, ...]:
    """Return the depth of each stage: the forwards that it does before its first backward.

    Args:
        schedule: its name, or the depths themselves.
        distances: each stage's J-j.
        accumulation: k, which is the depth of `fill-drain`.
    """
    match schedule:
        case "lockstep":
            return tuple(2 * distance + 1 for distance in distances)
        case "1f1b":
            return tuple(distance + 1 for distance in distances)
        case "sequential":
            return (1,) * len(distances)
        case "fill-drain":
            return (accumulation,) * len(distances)
        case _:
            return schedule


def schedule_text(schedule: RequestedSchedule) -> str:
    """Return a schedule as users read it."""
    if isinstance(schedule, str):
        return schedule
    if len(schedule) > 1 and len(set(schedule)) == 1:
        return f"depth {schedule[0]} in every stage"
    return f"depths {', '.join(map(str, schedule))}"


def order(
    depth: int,
    micro_batches: range,
    accumulation: int,
    flush: Flush = "drain",
    filled: int = 0,
    *,
    word: Word = "FB",
) -> Iterator[Action]:
    """Yield a stage's operations between two drains.

    Args:
        depth: forwards before the first backward, at least 1.
        micro_batches: their numbers, consecutive, counted from the run's start.
        accumulation: micro-batches in one update; the last window may be shorter.
        flush: "window" finishes every window's backwards before the next one's forwards.
        filled: the pipeline filled again before this forward; the operations on the micro-batches before it are left out.
        word: the order of a period, at a depth of 2 or more unless it begins with the forward.
    """
    assert word[0] == "F" or depth > 1, "a forward cannot come after its own reconstruction"
    assert word == "FB" or flush == "drain", "a flushed pipeline has no split backwards"
    if flush == "window":
        for start in range(0, len(micro_batches), accumulation):
            window = micro_batches[start : start + accumulation]
            yield from order(depth, window, accumulation, filled=filled)
        return
    left = micro_batches[max(0, filled - micro_batches.start) :]
    for m in left[: depth - 1]:
        yield Action("forward", m)
    for m in left:
        for verb in period(word):
            if verb != "forward":
                yield Action(verb, m)
            elif m + depth - 1 in micro_batches:
                yield Action("forward", m + depth - 1)
        if (m - micro_batches.start + 1) % accumulation == 0 or m == micro_batches[-1]:
            yield Action("update", m)


def program_order(program: StageProgram, micro_batches: range, filled: int = 0) -> Iterator[Action]:
    """Yield the operations of a stage's program between two drains; the arguments are those of `order`."""
    return order(program.depth, micro_batches, program.accumulation, program.flush, filled, word=program.word)


def static_order(
    programs: Sequence[StageProgram], micro_batches: range, filled: int = 0
) -> Iterator[tuple[int, Action]]:
    """Yield all operations between two drains, each with its stage's index.

    Args:
        programs: of all stages.
        micro_batches: their numbers, consecutive, counted from the run's start.
        filled: as in `order`.
    """
    counts = _Counts(programs)
    orders = [program_order(program, micro_batches, filled) for program in programs]
    following = [next(actions, None) for actions in orders]
    # A stage that can begin its operation can do so until it does, since counts only grow.
    able = [False] * len(programs)
    nearest_to_head: list[int] = []

    def enter(stage: int) -> None:
        action = following[stage]
        if not able[stage] and action is not None and counts.allow(stage, action.verb):
            able[stage] = True
            heappush(nearest_to_head, -stage)

    for stage in range(len(programs)):
        enter(stage)
    while nearest_to_head:
        stage = -heappop(nearest_to_head)
        action = following[stage]
        assert action is not None
        yield programs[stage].index, action
        counts.add(stage, action.verb)
        able[stage], following[stage] = False, next(orders[stage], None)
        for other in (stage, *counts.neighbours(stage)):
            enter(other)
    assert not any(following), "every stage waits: depths grow along an edge"


def static_evaluation_order(programs: Sequence[StageProgram], batches: range) -> Iterator[tuple[int, Action]]:
    """Yield the forwards of an evaluation, each with its stage's index."""
    return ((program.index, Action("forward", batch)) for batch in batches for program in programs)


class _Counts:
    """The operations of each verb that every stage has done, stages counted from 0."""

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self._done: dict[Verb, list[int]] = {verb: [0] * len(programs) for verb in DIRECTIONS}
        # By verb and stage: the channels that it reads, and those on which it sends.
        self._reads: dict[Verb, list[list[Channel]]] = {verb: [[] for _ in programs] for verb in DIRECTIONS}
        self._sends: dict[Verb, list[list[Channel]]] = {verb: [[] for _ in programs] for verb in DIRECTIONS}
        for channel in {one.key: one for program in programs for one in program.channels}.values():
            self._reads[channel.read_by][channel.receiver - 1].append(channel)
            self._sends[channel.sent_by][channel.sender - 1].append(channel)

    def allow(self, stage: int, verb: Verb) -> bool:
        """Whether a stage's operation has its messages, and room for the messages that it sends."""
        if verb not in DIRECTIONS:
            return True
        done = self._done
        own = done[verb][stage]
        return all(done[one.sent_by][one.sender - 1] > own for one in self._reads[verb][stage]) and all(
            own - done[one.read_by][one.receiver - 1] < one.capacity for one in self._sends[verb][stage]
        )

    def neighbours(self, stage: int) -> Iterator[int]:
        """Yield the stages with a channel to or from a stage."""
        yield from (channel.sender - 1 for channel in self._reads["forward"][stage])
        yield from (channel.receiver - 1 for channel in self._sends["forward"][stage])

    def add(self, stage: int, verb: Verb) -> None:
        if verb in DIRECTIONS:
            self._done[verb][stage] += 1
