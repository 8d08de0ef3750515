"""The order of operations of a stage and of several, the delay that follows from it, cuts through it, what channels hold, and what methods keep."""

from collections import defaultdict
from fractions import Fraction

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.plugins.stage_facts import DELAYED, StageFacts
from petra_graph.program.channels import capacity
from petra_graph.program.cut import Cut, aligned
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import WeightVersions, depths, order, program_order
from petra_graph.program.simulation import static_order
from tests.support.pipelines import GRAPHS, SHAPES, pipeline
from tests.support.simulated_pipelines import any_programs, graph_programs


def depth(name: str, distance: int) -> int:
    return depths(name, [distance], 1)[0]


THREE_STAGES_OF_1F1B = """
    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U
"""
THREE_STAGES_OF_LOCKSTEP = """
    stage 1   F0 F1 F2 F3 F4 B0 U B1 U B2 U B3 U B4 U
    stage 2   F0 F1 F2 B0 U F3 B1 U F4 B2 U B3 U B4 U
    stage 3   F0 B0 U F1 B1 U F2 B2 U F3 B3 U F4 B4 U
"""
THREE_STAGES_OF_SEQUENTIAL = """
    stage 1   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
    stage 2   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
    stage 3   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
"""


def table(schedule: str, accumulation: int, stages: int = 3, micro_batches: int = 5) -> str:
    rows = [
        " ".join(map(str, order(depth(schedule, stages - j), range(micro_batches), accumulation)))
        for j in range(1, stages + 1)
    ]
    return "".join(f"    stage {j}   {row}\n" for j, row in enumerate(rows, start=1))


@pytest.mark.parametrize(
    ("schedule", "accumulation", "expected"),
    [
        ("1f1b", 2, THREE_STAGES_OF_1F1B),
        ("lockstep", 1, THREE_STAGES_OF_LOCKSTEP),
        ("sequential", 3, THREE_STAGES_OF_SEQUENTIAL),
    ],
)
def test_tick_tables(schedule, accumulation, expected):
    assert table(schedule, accumulation) == expected.removeprefix("\n")


@pytest.mark.parametrize(
    ("flush", "expected"), [("drain", "F3 F4 B3 U F5 B4 F6 B5 U B6 U"), ("window", "F3 B3 U F4 F5 B4 B5 U F6 B6 U")]
)
def test_a_pipeline_that_fills_anew_goes_on_with_its_windows(flush, expected):
    assert " ".join(map(str, order(2, range(7), 2, flush, filled=3))) == expected
    assert list(order(2, range(3, 7), 2, flush, filled=2)) == list(order(2, range(3, 7), 2, flush))


@given(st.integers(1, 12), st.integers(0, 50), st.integers(0, 30), st.integers(1, 9))
def test_every_micro_batch_goes_forward_and_backward_once_in_order_and_windows_end_in_updates(depth, first, count, k):
    """No more than `depth` are in flight, and as many once the pipeline is filled."""
    actions, expected = list(order(depth, range(first, first + count), k)), list(range(first, first + count))
    for verb in ("forward", "backward"):
        assert [action.micro_batch for action in actions if action.verb == verb] == expected
    flying, window, in_flight, windows = 0, 0, [0], []
    for action in actions:
        flying += {"forward": 1, "backward": -1, "update": 0}[action.verb]
        in_flight.append(flying)
        window += action.verb == "backward"
        if action.verb == "update":
            windows.append(window)
            window = 0
    assert (min(in_flight), max(in_flight), flying, window) == (0, min(depth, count), 0, 0)
    assert windows == [min(k, count - done) for done in range(0, count, k)]


def test_a_version_is_copied_before_it_changes_and_dropped_with_its_last_user():
    copies = iter("ab")
    versions = WeightVersions(lambda: next(copies))
    versions.begin(0)
    versions.begin(1)
    assert versions.older(0) is None
    versions.before_step()
    assert (versions.older(0), versions.older(1), versions.copies) == ("a", "a", {0: "a"})
    assert versions.end(0) is None
    assert versions.end(1) == "a"
    assert not versions.copies
    versions.before_step()
    assert not versions.copies, "no micro-batch uses the version"


@pytest.mark.parametrize(("depth", "accumulation"), [(1, 1), (5, 1), (5, 2), (9, 4)])
def test_there_are_at_most_as_many_copies_as_the_paper_counts(depth, accumulation):
    versions, most = WeightVersions(list), 0
    for action in order(depth, range(40), accumulation):
        match action.verb:
            case "forward":
                versions.begin(action.micro_batch)
            case "backward":
                versions.end(action.micro_batch)
            case "update":
                versions.before_step()
        most = max(most, len(versions.copies))
    assert most == -(-(depth - 1) // accumulation)
    assert not versions.copies


# --- several stages ---

MICRO_BATCHES = st.builds(lambda start, count: range(start, start + count), st.integers(0, 5), st.integers(1, 13))


def test_the_nearest_to_the_head_goes_first():
    stages = (("stem", "rev0"), ("rev1", "rev2", "head"))
    built = pipeline(GRAPHS["chain"], SHAPES["chain"], schedule="1f1b", accumulation=2, stages=stages)
    found = " ".join(f"{action}@{stage}" for stage, action in static_order(built.programs, range(3)))
    assert found == "F0@1 F0@2 B0@2 F1@1 F1@2 B1@2 U@2 B0@1 F2@1 F2@2 B2@2 U@2 B1@1 U@1 B2@1 U@1"


@given(any_programs(), MICRO_BATCHES)
def test_every_legal_choice_of_depths_ends(programs, micro_batches):
    """Each stage does its own order to the end, no message is read before it is sent, and no channel holds more than its capacity."""
    found = defaultdict(list)
    held: dict[object, int] = defaultdict(int)
    for stage, action in static_order(programs, micro_batches):
        found[stage].append(action)
        for channel in programs[stage - 1].channels:
            held[channel.key] += (channel.sender, channel.key.direction) == (stage, action.verb)
            held[channel.key] -= (channel.receiver, channel.key.direction) == (stage, action.verb)
            assert 0 <= held[channel.key] <= channel.capacity
    assert {stage: list(program_order(programs[stage - 1], micro_batches)) for stage in found} == found
    assert len(found) == len(programs)
    assert not any(held.values())


# --- channels, and what nodes keep ---


@pytest.mark.parametrize(("producer", "consumer", "expected"), [(1, 1, 2), (2, 1, 2), (3, 1, 2), (5, 2, 4), (9, 1, 9)])
def test_a_producer_that_is_far_ahead_never_waits_for_room(producer, consumer, expected):
    assert capacity(producer, consumer) == expected


@pytest.mark.parametrize(
    ("method", "kind", "asked", "how", "expected"),
    [
        ("petra", "reversible", None, "delayed", ("nothing", "current")),
        ("petra", "reversible", "input", "delayed", ("input", "current")),
        ("petra", "reversible", "graph", "at once", ("graph", "current")),
        # A graph has the forward's parameters: without them, a delayed node keeps what the method says.
        ("petra", "reversible", "graph", "delayed", ("nothing", "current")),
        ("petra", "buffered", "graph", "delayed", ("input", "current")),
        ("petra", "reversible", "graph", "delayed, with stored parameters", ("graph", "stored")),
        ("pipedream", "reversible", "graph", "delayed", ("graph", "stored")),
        ("pipedream", "reversible", "graph", "at once", ("graph", "current")),
        ("pipedream", "reversible", "nothing", "delayed", ("nothing", "stored")),
        ("gpipe", "buffered", "input", "at once", ("input", "current")),
        ("paci", "reversible", "graph", "delayed", ("graph", "current")),
        ("paci", "buffered", None, "delayed", ("graph", "current")),
    ],
)
def test_what_a_single_node_keeps(method, kind, asked, how, expected):
    delayed, allowed = how != "at once", how == "delayed, with stored parameters"
    assert METHODS[method].mode(kind, asked, delayed=delayed, allow_stored=allowed) == expected


# --- the delay of a stage, in closed form and counted ---


FACTS = {
    "depth": st.integers(1, 12),
    "accumulation": st.integers(1, 6),
    "micro_batches": st.integers(1, 40),
    "flush": st.sampled_from(["drain", "window"]),
}


def facts(**changes) -> StageFacts:
    return evolve(DELAYED, **changes)


def counted(stage: StageFacts, epoch: int) -> tuple[dict[int, int], list[list[int]]]:
    """Return d of each micro-batch that a stage trains in an epoch, and the micro-batches of each update."""
    start = epoch * stage.micro_batches
    micro_batches = range(start, start + stage.micro_batches)
    updates, at_forward, late, windows = 0, {}, {}, [[]]
    for action in order(stage.depth, micro_batches, stage.accumulation, stage.flush, stage.filled):
        match action.verb:
            case "forward":
                at_forward[action.micro_batch] = updates
            case "backward":
                late[action.micro_batch] = updates - at_forward[action.micro_batch]
                windows[-1].append(action.micro_batch)
            case "update":
                updates += 1
                windows.append([])
    return late, windows[:-1]


@given(**FACTS, epoch=st.integers(0, 3), filled=st.one_of(st.just(0), st.integers(0, 160)))
def test_the_closed_form_is_what_counting_gives(epoch, filled, **changes):
    stage = facts(**changes, filled=filled)
    late, _ = counted(stage, epoch)
    assert {m: stage.staleness(m) for m in late} == late


@given(**FACTS, epochs=st.integers(1, 3))
def test_the_delay_of_each_update_of_a_run(epochs, **changes):
    stage = facts(**changes)
    means = []
    for epoch in range(epochs):
        late, windows = counted(stage, epoch)
        means += [sum(late[m] for m in window) / len(window) for window in windows]
    assert [stage.staleness_of_update(u) for u in range(len(means))] == means


@given(depth=st.integers(1, 12), accumulation=st.integers(1, 6), window=st.integers(0, 50))
def test_the_steady_delay_is_that_of_every_update_once_the_pipeline_is_full(depth, accumulation, window):
    stage = facts(depth=depth, accumulation=accumulation)
    u = depth // accumulation + 1 + window
    assert Fraction(stage.staleness_of_update(u)).limit_denominator(100) == Fraction(depth - 1, accumulation)
    assert stage.steady == (depth - 1) / accumulation
    assert evolve(stage, flush="window").steady == 0


# --- cuts through a running pipeline ---


PROGRAMS = any_programs() | st.sampled_from([graph_programs(nodes, accumulation=2) for nodes in GRAPHS.values()])
DRAINS = st.builds(lambda start, count: range(start, start + count), st.integers(0, 3), st.integers(1, 9))


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    micro_batches = draw(DRAINS)
    return Cut(micro_batches=micro_batches, at=draw(st.integers(micro_batches.start, micro_batches.stop)))


@given(PROGRAMS, cuts())
def test_what_precedes_a_cut_is_what_stands_before_the_forward_behind_it(programs, cut):
    for program in programs:
        actions = list(program_order(program, cut.micro_batches))
        forward = (at for at, each in enumerate(actions) if (each.verb, each.micro_batch) == ("forward", cut.at))
        before = actions[: next(forward, len(actions))]
        assert [action for action in actions if cut.precedes(program, action)] == before
        assert cut.updates(program) == sum(action.verb == "update" for action in before)


@given(PROGRAMS, cuts())
def test_messages_in_flight_are_those_sent_before_a_cut_and_read_behind_it(programs, cut):
    flying = defaultdict(set)
    sent = defaultdict(int)
    for index, action in static_order(programs, cut.micro_batches):
        program = programs[index - 1]
        for channel in program.channels:
            sends = (index, action.verb) == (channel.sender, channel.key.direction)
            reads = (index, action.verb) == (channel.receiver, channel.key.direction)
            if (sends or reads) and cut.precedes(program, action):
                sent[channel.key] += sends
                flying[channel.key] ^= {action.micro_batch}
    for channel in {channel.key: channel for program in programs for channel in program.channels}.values():
        sender, receiver = programs[channel.sender - 1], programs[channel.receiver - 1]
        assert cut.done(sender, channel.key.direction) == sent[channel.key]
        crossing = cut.in_flight(sender, receiver) if channel.key.direction == "backward" else ()
        assert set(crossing) == flying[channel.key]


@given(st.integers(1, 6), st.integers(1, 3), DRAINS, st.data())
def test_backwards_before_a_cut_behind_which_the_pipeline_had_filled_again(depth, accumulation, micro_batches, data):
    """What was in flight before that forward was discarded, and counts as done."""
    filled = data.draw(st.integers(micro_batches.start, micro_batches.stop - 1))
    at = data.draw(st.integers(filled, micro_batches.stop - 1))
    actions = list(order(depth, micro_batches, accumulation, "drain", filled))
    (forward,) = (n for n, each in enumerate(actions) if (each.verb, each.micro_batch) == ("forward", at))
    done = sum(action.verb == "backward" for action in actions[:forward]) + filled - micro_batches.start
    assert Cut(micro_batches=micro_batches, at=at, filled=filled).backwards(depth, "drain") == done


@pytest.mark.parametrize(
    ("at", "flush", "expected"), [(9, "drain", 9), (9, "window", 11), (12, "window", 15), (22, "window", 22)]
)
def test_a_cut_of_a_flushed_pipeline_falls_behind_a_window_and_never_behind_the_epoch(at, flush, expected):
    assert aligned(at, 11, 4, flush) == expected
