"""A lower bound of one cut's tick, in the time that it takes to add up its nodes.

    a device     the work of its stages
    a link       the messages that enter it
    a stage      a micro-batch's way from its forward to the head and back to its backward, and the update where a window
                 ends, shared by as many micro-batches as are in flight there

The time model is never below: it has the same seconds and messages, and waits in addition.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import gcd, inf

from attrs import define

from petra_graph.compiler.cuts import Account, Cut, Hosts
from petra_graph.compiler.node_seconds import NodeSeconds, NodeTable
from petra_graph.compiler.partition_problem import least_messages
from petra_graph.compiler.partitioner.problem import ItemEdge
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import depths
from petra_graph.spec.model import RequestedSchedule

_MOST_STEPS = 100_000
"""Of a choice of devices."""


@define(kw_only=True)
class CutBound:
    """Lower bounds of the ticks of cuts."""

    accounts: Sequence[Account]
    """Of every device."""
    seconds: Sequence[NodeSeconds]
    """Of every device."""
    messages: Sequence[tuple[int, int, ItemEdge]]
    """With the positions of their ends; of backward bytes, the least."""
    links: Mapping[tuple[int, int], Link]
    """Of each two devices."""
    schedule: RequestedSchedule
    accumulation: int
    flushes: bool

    @classmethod
    def of(cls, inputs: PlannerInputs, table: NodeTable) -> CutBound:
        """Return the bounds for a network on its devices."""
        seconds = table.on(inputs)
        position = {name: place for place, name in enumerate(inputs.graph.order)}
        numbered = list(enumerate(inputs.devices))
        return cls(
            accounts=[Account(device.before_last, device.last, device.stage) for device in seconds],
            seconds=seconds,
            messages=[
                (position[edge.producer], position[edge.consumer], edge) for edge in least_messages(inputs, table)
            ],
            links={(a, b): one.link_to(other) for a, one in numbered for b, other in numbered},
            schedule=inputs.schedule,
            accumulation=inputs.accumulation,
            flushes=inputs.method.flush == "window",
        )

    def tick(self, cut: Cut) -> float:
        """Return a lower bound of the cut's tick."""
        stages, hosts = cut
        last = len(hosts) - 1
        load = [0.0] * len(self.accounts)
        forward, backward, update = ([0.0] * len(hosts) for _ in range(3))
        for stage, host in enumerate(hosts):
            load[host] += self.accounts[host].stage
            update[stage] += self.accounts[host].stage
        for node, stage in enumerate(stages):
            host = hosts[stage]
            load[host] += (self.accounts[host].last if stage == last else self.accounts[host].inner)[node]
            forward[stage] += self.seconds[host].forward[node]
            backward[stage] += self.seconds[host].backward[node]
            update[stage] += self.seconds[host].update[node]
        occupied: dict[tuple[int, int], float] = {}
        ways: dict[tuple[int, int], tuple[float, float]] = {}
        for producer, consumer, message in self.messages:
            ends = stages[producer], stages[consumer]
            if ends[0] == ends[1]:
                continue
            there, back = 0.0, 0.0
            devices = hosts[ends[0]], hosts[ends[1]]
            if devices[0] != devices[1]:
                link = self.links[devices]
                there, back = (size / link.bytes_per_second for size in (message.forward_bytes, message.backward_bytes))
                occupied[devices] = occupied.get(devices, 0.0) + there
                occupied[devices[::-1]] = occupied.get(devices[::-1], 0.0) + back
                there, back = there + link.latency_seconds, back + link.latency_seconds
            known = ways.get(ends, (0.0, 0.0))
            ways[ends] = max(known[0], there), max(known[1], back)
        return max(*load, *occupied.values(), self._trips(forward, backward, update, ways))

    def on_other_devices(self, cut: Cut, kinds: Sequence[Hashable]) -> Cut:
        """Return the same stages, a device each, on the devices in their listed order whose busiest one, or busiest link, is least busy.

        A dynamic program from the last stage to the first: where machines end is where messages between neighbours are small. Devices
        of one kind that stand together take turns, so the next device is the next one or the first of another kind.
        """
        stages, count, devices = cut.stages, len(cut.hosts), len(self.accounts)
        changes = [device for device in range(1, devices) if kinds[device] != kinds[device - 1]]
        if count * devices * (len(changes) + 1) > _MOST_STEPS:
            return cut
        work = [[account.stage] * count for account in self.accounts]
        for own, account in zip(work, self.accounts, strict=True):
            for node, stage in enumerate(stages):
                own[stage] += (account.last if stage == count - 1 else account.inner)[node]
        ahead, back = [0.0] * count, [0.0] * count
        for producer, consumer, message in self.messages:
            sender = stages[producer]
            if stages[consumer] == sender + 1:
                ahead[sender] += message.forward_bytes
                back[sender] += message.backward_bytes
        # The largest seconds of stages from a place on, if a device hosts the first of them, with the sum of their messages'; then the hosts.
        best: list[tuple[float, float, Hosts]] = [(own[-1], 0.0, (device,)) for device, own in enumerate(work)]
        for stage in range(count - 2, -1, -1):
            rest, best = best, []
            for device, own in enumerate(work):
                found: tuple[float, float, Hosts] = (inf, inf, ())
                for after in {device + 1, *changes}:
                    if not device < after < devices:
                        continue
                    link = self.links[device, after]
                    seconds = [size / link.bytes_per_second for size in (ahead[stage], back[stage])]
                    busiest = max(own[stage], *seconds, rest[after][0])
                    found = min(found, (busiest, rest[after][1] + sum(seconds), (device, *rest[after][2])))
                best.append(found)
        return cut._replace(hosts=min(best)[2])

    def _trips(
        self,
        forward: Sequence[float],
        backward: Sequence[float],
        update: Sequence[float],
        ways: Mapping[tuple[int, int], tuple[float, float]],
    ) -> float:
        """Return the longest way from a stage's forward to its backward, over the micro-batches in flight there.

        Of every k micro-batches d apart, gcd(d, k) may end a window.
        """
        if self.schedule == "auto":
            return 0.0
        count = len(forward)
        there, back, distance = [0.0] * count, [0.0] * count, [0] * count
        for (sender, receiver), (ahead, home) in sorted(ways.items(), reverse=True):
            there[sender] = max(there[sender], ahead + there[receiver] + forward[receiver])
            back[sender] = max(back[sender], home + back[receiver] + backward[receiver])
            distance[sender] = max(distance[sender], distance[receiver] + 1)
        trips = [there[s] + back[s] + forward[s] + backward[s] for s in range(count)]
        if self.flushes:
            return max(trip / self.accumulation + own for trip, own in zip(trips, update, strict=True))
        in_flight = depths(self.schedule, distance, self.accumulation)
        return max(
            (trip + gcd(depth, self.accumulation) * own) / depth
            for trip, own, depth in zip(trips, update, in_flight, strict=True)
        )
