"""Which devices the pipeline goes through, and in which order, where they are unlike or more than the stages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from math import inf

from petra_graph.compiler.cuts import Cut, Hosts, device_orders
from petra_graph.compiler.node_table import NodeTable

_MOST = 720
"""Orders that are tried, at most: all of six unlike devices."""
_MOST_STEPS = 3e7
"""Intervals of nodes that may be looked at for all of them."""
_MOST_ENDS = 100_000
"""Of stages on devices, to choose where machines end."""


def best_orders(
    kinds: Sequence[Hashable],
    used: int,
    *,
    listed: bool,
    value: Callable[[Hosts], float],
    nodes: int,
    begin: Sequence[int],
) -> list[Hosts]:
    """Return orders of some devices, those with the least values first.

    If there are too many to try them all, devices are exchanged from a first order on, as long as that lowers the value.

    Args:
        kinds: of every device; those of one kind can take each other's place.
        used: number of devices in an order.
        listed: devices keep the order in which they are listed.
        value: of an order.
        nodes: of the network, or stages that are given; finding a value takes time by their square.
        begin: the devices that are best by themselves, first.
    """
    most = max(8, min(_MOST, int(_MOST_STEPS / (used * (nodes + 1) ** 2))))
    orders = list(islice(device_orders(kinds, used, listed=listed), most + 1))
    if len(orders) == 1:
        return orders
    if len(orders) <= most:
        values = {order: value(order) for order in orders}
    else:
        best = tuple(sorted(begin[:used]) if listed else begin[:used])
        values = {order: value(order) for order in (orders[0], best)}
        changed = True
        while changed and len(values) < most:
            best, changed = min(values, key=values.__getitem__), False
            for order in _exchanged(best, kinds, listed=listed):
                if order not in values and len(values) < most:
                    values[order] = value(order)
                    if changed := values[order] < values[best]:
                        break
    return sorted(values, key=values.__getitem__)


def _exchanged(order: Hosts, kinds: Sequence[Hashable], *, listed: bool) -> Iterator[Hosts]:
    """Yield the order with one device replaced by another kind's first spare one, or exchanged with one of another kind."""
    spare = {kinds[device]: device for device in reversed(range(len(kinds))) if device not in order}
    for place, device in enumerate(order):
        for kind, other in spare.items():
            if kind != kinds[device]:
                replaced = (*order[:place], other, *order[place + 1 :])
                yield tuple(sorted(replaced)) if listed else replaced
    for place, device in enumerate(order):
        for later in range(place + 1, 0 if listed else len(order)):
            if kinds[order[later]] != kinds[device]:
                exchange = {device: order[later], order[later]: device}
                yield tuple(exchange.get(host, host) for host in order)


def where_machines_end(table: NodeTable, cut: Cut, kinds: Sequence[Hashable]) -> Cut:
    """Return the same stages, a device each, on the devices in their listed order whose busiest one, or busiest link, is least busy.

    A dynamic program from the last stage to the first: where machines end is where messages between neighbours are small. Devices
    of one kind that stand together take turns, so the next device is the next one or the first of another kind.
    """
    stages, count, devices = cut.stages, len(cut.hosts), table.inputs.devices
    changes = [device for device in range(1, len(devices)) if kinds[device] != kinds[device - 1]]
    if count * len(devices) * (len(changes) + 1) > _MOST_ENDS:
        return cut
    work = [[seconds.stage] * count for seconds in table.seconds]
    for own, seconds in zip(work, table.seconds, strict=True):
        for node, stage in enumerate(stages):
            own[stage] += (seconds.last if stage == count - 1 else seconds.inner)[node]
    sizes = [[0, 0] for _ in range(count)]
    for producer, consumer, forward, backward in table.messages:
        sender = stages[producer]
        if stages[consumer] == sender + 1:
            sizes[sender][0] += forward
            sizes[sender][1] += backward
    # The largest seconds of stages from a place on, if a device hosts the first of them, with the sum of their messages'; then the hosts.
    best: list[tuple[float, float, Hosts]] = [(own[-1], 0.0, (device,)) for device, own in enumerate(work)]
    for stage in range(count - 2, -1, -1):
        rest, best = best, []
        for device, own in enumerate(work):
            found: tuple[float, float, Hosts] = (inf, inf, ())
            for after in {device + 1, *changes}:
                if device < after < len(devices):
                    rate = devices[device].link_to(devices[after]).bytes_per_second
                    sending = [size / rate for size in sizes[stage]]
                    busiest = max(own[stage], *sending, rest[after][0])
                    found = min(found, (busiest, rest[after][1] + sum(sending), (device, *rest[after][2])))
            best.append(found)
    return cut._replace(hosts=min(best)[2])
