"""Whether what processes enqueue on their streams can come to a standstill, under the strictest rules that NCCL leaves open.

An operation begins when

1. the operation before it on its stream has ended;
2. the operation before it on its communicator has ended, whatever its stream;
3. the operations whose events it waits for have ended.

A send and its receive end together, when both have begun: a send waits for its receive to be posted, however small the message. The
n-th send of a process on a communicator meets the n-th receive of the other one there, by this order alone.

So a message is one node of a graph, with the waits of its send and of its receive, and an operation of a stage is another one. If
the graph has no cycle, some operation that has not ended can always begin, and all end. If it has one, no operation of the cycle
ever ends. No time enters, nor does it matter how far the hosts run ahead of their devices.

A device has a number of hardware queues (`CUDA_DEVICE_MAX_CONNECTIONS`), each of which keeps its order. Where there are more streams than
queues, those that share a queue count as one stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import networkx as nx

from tests.support.stream_orders import Orders, StreamOperation

_EVENT = "through its event"
_TRIED = 100
"""Operations from which the shortest cycle is searched."""


class _Place(NamedTuple):
    """An operation in the order of a process."""

    rank: int
    number: int


class _Wait(NamedTuple):
    """An operation waits for one that its process has enqueued before."""

    waiting: _Place
    awaited: _Place
    why: str


def deadlock(orders: Orders) -> tuple[str, ...]:
    """Return why the operations cannot all end, one sentence each: messages that do not meet, or the waits of a cycle; none if they all end.

    Args:
        orders: between two drains, or in an evaluation. Where each of several has no deadlock, neither have they one after another.
    """
    places = (_Place(rank, index) for rank, order in orders.items() for index in range(len(order)))
    nodes = {place: node for node, place in enumerate(places)}
    for sent, received in _meetings(orders):
        if sent is None or received is None or not _same_message(_at(orders, sent), _at(orders, received)):
            return (_mismatch(orders, sent, received),)
        nodes[received] = nodes[sent]
    graph = nx.DiGraph()
    for wait in (wait for rank, order in orders.items() for wait in _waits(rank, order)):
        graph.add_edge(nodes[wait.waiting], nodes[wait.awaited], wait=wait)
    cycle = _joined(_shortest_cycle(graph))
    return tuple(
        f"on rank {wait.waiting.rank} {_words(orders, wait.waiting)} waits for {_words(orders, wait.awaited)}, {wait.why}"
        for wait in cycle
    )


def _at(orders: Orders, place: _Place) -> StreamOperation:
    return orders[place.rank][place.number]


def _meetings(orders: Orders) -> Iterator[tuple[_Place | None, _Place | None]]:
    """Yield every send with the receive that it meets; None for an end that is missing."""
    ends = defaultdict[tuple[str, str, int], list[_Place]](list)
    for rank, order in orders.items():
        for index, operation in enumerate(order):
            if operation.communicator is not None:
                ends[operation.communicator, operation.kind, rank].append(_Place(rank, index))
    ranks = defaultdict[str, set[int]](set)
    for communicator, _, rank in ends:
        ranks[communicator].add(rank)
    for communicator, both in ranks.items():
        for sender in sorted(both):
            receives = (ends[communicator, "receive", rank] for rank in both - {sender})
            yield from zip_longest(ends[communicator, "send", sender], next(receives, []))
            if len(both) == 1:
                yield from zip_longest([], ends[communicator, "receive", sender])


def _same_message(one: StreamOperation, other: StreamOperation) -> bool:
    return (one.channel, one.action) == (other.channel, other.action)


def _mismatch(orders: Orders, sent: _Place | None, received: _Place | None) -> str:
    """Say that a send and a receive that meet are of different messages, or that one of them is missing."""
    places = [place for place in (sent, received) if place is not None]
    words = [f"{_words(orders, place)} on rank {place.rank}" for place in places]
    communicator = _at(orders, places[0]).communicator
    met = words[1] if len(words) > 1 else ("no receive" if received is None else "no send")
    return f"{words[0]} meets {met} on communicator {communicator}"


def _waits(rank: int, order: Sequence[StreamOperation]) -> Iterator[_Wait]:
    """Yield what each operation of a process waits for there."""
    latest: dict[str, _Place] = {}
    for index, operation in enumerate(order):
        place = _Place(rank, index)
        for before in operation.after:
            assert before < index, "to wait for an event that is not recorded yet is not to wait"
            yield _Wait(place, _Place(rank, before), _EVENT)
        lines = [f"stream {operation.stream}"]
        if operation.communicator is not None:
            lines.append(f"communicator {operation.communicator}")
        for line in lines:
            if line in latest:
                yield _Wait(place, latest[line], f"which is ahead of it on {line}")
            latest[line] = place


def _shortest_cycle(graph: nx.DiGraph) -> list[_Wait]:
    """Return the waits of a short cycle, none where there is no cycle."""
    knots = (found for found in nx.strongly_connected_components(graph) if len(found) > 1)
    knot = min(knots, key=len, default=None)
    if knot is None:
        return []
    tied = graph.subgraph(knot)
    paths = (
        nx.shortest_path(tied, after, node) for node in islice(sorted(knot), _TRIED) for after in tied.successors(node)
    )
    path = min(paths, key=len)
    return [graph.edges[edge]["wait"] for edge in zip([path[-1], *path], path, strict=False)]


def _joined(cycle: Sequence[_Wait]) -> list[_Wait]:
    """Join waits one behind the other on a stream or a communicator."""
    found: list[_Wait] = []
    for wait in cycle:
        if found and (found[-1].awaited, found[-1].why) == (wait.waiting, wait.why) and wait.why != _EVENT:
            found[-1] = found[-1]._replace(awaited=wait.awaited)
        else:
            found.append(wait)
    return found


def _words(orders: Orders, place: _Place) -> str:
    operation = _at(orders, place)
    done = f"{operation.action.verb.replace('_', ' ')} of micro-batch {operation.action.micro_batch}"
    if operation.channel is None:
        return f"stage {operation.stage}'s {done}"
    return f"the {operation.kind} of {operation.channel} of micro-batch {operation.action.micro_batch}"
