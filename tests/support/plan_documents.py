"""Plans as JSON documents, made without planner: numbers are plausible, their relations those that a planner keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import networkx as nx

from petra_graph.compiler.plan import Plan, read_values

MIB = 2**20
PARTS = ("parameters", "gradients", "optimizer", "input_buffer", "parameter_buffer", "working", "channels")

Document = dict[str, Any]


def as_plan(document: Document) -> Plan:
    return read_values(document, Plan, "a plan")


def three_stages() -> Document:
    """Three stages of a chain on two devices, one of them with a limit."""
    nodes = ["stem", "down1", "layer1.0", "layer1.1", "layer1.2", "layer2.0", "head"]
    cuts = [nodes[:4], nodes[4:6], nodes[6:]]
    return document("small", list(itertools.pairwise(nodes)), cuts, ["cpu:0", "cpu:0", "cpu:1"], limit=512 * MIB)


def revnet50() -> Document:
    """The paper's 18 stages, a device each."""
    blocks = {"stem": 0, "down1": 0, "layer1": 2, "down2": 0, "layer2": 3, "down3": 0, "layer3": 5, "down4": 0}
    nodes = [*_copies(blocks | {"layer4": 2, "head": 0})]
    devices = [f"cuda:{index}" for index in range(18)]
    return document("revnet50_imagenet", list(itertools.pairwise(nodes)), [[name] for name in nodes], devices)


def branches() -> Document:
    """Two branches of unequal length, and an edge that skips them both."""
    edges = [
        ("stem", "left.0"),
        ("left.0", "left.1"),
        ("left.1", "left.2"),
        ("stem", "right.0"),
        ("left.2", "join"),
        ("right.0", "join"),
        ("join", "body.0"),
        ("stem", "merge"),
        ("body.0", "body.1"),
        ("body.1", "merge"),
        ("merge", "head"),
    ]
    cuts = [["stem"], ["left.0", "left.1", "left.2"], ["right.0"], ["join", "body.0", "body.1"], ["merge", "head"]]
    return document("branches", edges, cuts, ["cpu:0", "cpu:1", "cpu:2", "cpu:3", "cpu:3"])


def hostile() -> Document:
    """Names that break out of whatever quotes them badly."""
    nodes = [
        'a"];x-->y',
        "</script><script>alert(1)</script>",
        "[red]bold[/red]",
        "日本語\n層",
        "`#|{}<b>&amp;\\",
        "end",
    ]
    devices = ['gpu"<0>', "[link]"]
    made = document("<i>x</i> [bold]", list(itertools.pairwise(nodes)), [nodes[:2], nodes[2:]], devices)
    made["warnings"] = ["<img onerror=x> [red]warn", "--><!-- ]]>"]
    made["assumptions"] = ["http" + "://example.org is text [/]"]
    return made


def long_names() -> Document:
    """Names that are wider than any place for them."""
    nodes = [*(f"a-name-without-a-break-{'x' * 80}{index}" for index in range(6)), "W" * 30]
    devices = ["machine-with-a-long-name.example.org:cuda:0" * 2, "cuda:1"]
    return document("a-network-" + "y" * 120, list(itertools.pairwise(nodes)), [nodes[:3], nodes[3:]], devices)


def document(
    name: str,
    edges: Sequence[tuple[str, str]],
    cuts: Sequence[Sequence[str]],
    devices: Sequence[str],
    limit: int | None = None,
) -> Document:
    """Make a plan of the graph with these edges; `devices` names each stage's."""
    graph = nx.DiGraph(edges)
    home = {node: index for index, nodes in enumerate(cuts, start=1) for node in nodes}
    distances = _distances(graph, home, len(cuts))
    nodes = [_node(graph, node, home) for nodes in cuts for node in nodes]
    stages = [
        _stage(index, cut, devices[index - 1], distances[index], nodes) for index, cut in enumerate(cuts, start=1)
    ]
    totals = {part: sum(stage["bytes"][part] for stage in stages) for part in (*PARTS, "total")}
    parameters = sum(stage["parameters"] for stage in stages)
    tick = max(busy for busy in _busy(stages).values())
    made: dict[str, Any] = {
        "version": 1,
        "name": name,
        "method": "petra",
        "schedule": "lockstep",
        "accumulation": 2,
        "replicas": 1,
        "micro_batch": 64,
        "samples_per_update": 128,
        "stages": stages,
        "totals": {**dict.fromkeys(("parameters", "trained"), parameters), "bytes": totals},
        "paper_accounting": {
            "model": 4 * totals["parameters"],
            "input_buffer": totals["input_buffer"],
            "parameter_buffer": 0,
            "total": 4 * totals["parameters"] + totals["input_buffer"],
        },
        "timing": {
            "tick_seconds": tick,
            "samples_per_second": 64 / tick,
            "speedup": sum(_busy(stages).values()) / tick,
            "speedup_over": "plain backpropagation on one cpu",
            "bubble_fraction": 1 - sum(_busy(stages).values()) / tick / len(_busy(stages)),
            "exposed_communication": {"all_reduce": 0.0, "links": 0.0},
            "utilisation": [busy / tick for busy in _busy(stages).values()],
            "fill_seconds": 2 * max(distances.values()) * tick,
            "drain_seconds": max(distances.values()) * tick,
            "overhead_seconds": 0.0,
            "outside_seconds": 0.0,
            "exact": True,
        },
        "run": {"epochs": 1, "micro_batches_per_epoch": None, "epoch_seconds": None, "seconds": None},
        "certainty": {
            "samples_per_second_low": 32 / tick,
            "samples_per_second_high": 128 / tick,
            "times": "estimates from the data sheet of cpu",
            "spare_bytes": None,
        },
        "devices": [_device(device, stages, busy, tick, limit) for device, busy in _busy(stages).items()],
        "nodes": nodes,
        "timeline": list(_timeline(stages, tick, ticks=6)),
        "assumptions": [
            "times are estimates from the data sheet of cpu, of which kernels are taken to reach half; `petra-graph profile` times the real device",
            "links cost nothing",
        ],
        "warnings": [],
    }
    if len(cuts) > len(made["devices"]):
        made["warnings"].append(
            f"{len(cuts)} stages on {len(made['devices'])} devices: merging the stages of a device would save staleness "
            f"and buffers; set partition.stages = {len(made['devices'])}"
        )
    return made


def _copies(blocks: Mapping[str, int]) -> Iterator[str]:
    for name, repeat in blocks.items():
        yield from (f"{name}.{copy}" for copy in range(repeat)) if repeat else (name,)


def _distances(graph: nx.DiGraph, home: Mapping[str, int], stages: int) -> dict[int, int]:
    between = nx.DiGraph()
    between.add_nodes_from(range(1, stages + 1))
    between.add_edges_from((home[a], home[b]) for a, b in graph.edges if home[a] != home[b])
    distances: dict[int, int] = {}
    for stage in reversed(list(nx.topological_sort(between))):
        distances[stage] = max((distances[after] + 1 for after in between.successors(stage)), default=0)
    return distances


def _node(graph: nx.DiGraph, name: str, home: Mapping[str, int]) -> Document:
    place = list(graph.nodes).index(name)
    kind = "buffered" if place == 0 or name.startswith("down") or graph.in_degree(name) > 1 else "reversible"
    kind = kind if graph.out_degree(name) else "head"
    return {
        "name": name,
        "kind": kind,
        "block": {"reversible": "rev-bottleneck", "buffered": "down-bottleneck", "head": "pool-linear"}[kind],
        "stage": home[name],
        "parameters": 100_000 + 12_345 * place,
        "keeps": {"reversible": "nothing", "buffered": "input", "head": None}[kind],
        "inputs": list(graph.predecessors(name)),
        "outputs": [[64, 56, 56], [64, 56, 56]] if kind == "reversible" else [[128, 56, 56]],
        "flops": {"forward": 10**9 + 10**7 * place, "backward": 2 * 10**9 + 10**7 * place},
        "seconds": {"forward": 1e-3, "backward": 2e-3},
    }


def _stage(index: int, cut: Sequence[str], device: str, distance: int, nodes: Sequence[Document]) -> Document:
    mine = [node for node in nodes if node["name"] in cut]
    kinds = {node["kind"] for node in mine}
    kind = "head" if "head" in kinds else "buffered" if "buffered" in kinds else "reversible"
    parameters = sum(node["parameters"] for node in mine)
    flops = {verb: sum(node["flops"][verb] for node in mine) for verb in ("forward", "backward")}
    depth = 2 * distance + 1
    parts = dict.fromkeys(PARTS, 4 * parameters)
    parts |= {"input_buffer": depth * 6 * MIB if kind == "buffered" else 0, "parameter_buffer": 0}
    parts |= {"working": 40 * MIB + 1234 * index, "channels": 4 * 12 * MIB if distance else 0}
    return {
        "index": index,
        "nodes": list(cut),
        "kind": kind,
        "device": device,
        "depth": depth,
        "staleness": distance,
        "parameters": parameters,
        "flops": flops,
        "seconds": {"forward": flops["forward"] / 1e13, "backward": 1.5 * flops["backward"] / 1e13},
        "bytes": parts | {"total": sum(parts.values())},
        "channel_bytes": {"forward": 12 * MIB, "backward": 24 * MIB} if distance else {"forward": 0, "backward": 0},
        "distance": distance,
    }


def _busy(stages: Sequence[Document]) -> dict[str, float]:
    busy: dict[str, float] = {}
    for stage in stages:
        busy[stage["device"]] = busy.get(stage["device"], 0.0) + sum(stage["seconds"].values())
    return busy


def _device(device: str, stages: Sequence[Document], busy: float, tick: float, limit: int | None) -> Document:
    mine = [stage for stage in stages if stage["device"] == device]
    return {
        "name": device,
        "type": "a100" if "cuda" in device else "cpu",
        "stages": [stage["index"] for stage in mine],
        "memory_bytes": limit,
        "capacity_bytes": None,
        "bytes": {part: sum(stage["bytes"][part] for stage in mine) for part in (*PARTS, "total")},
        "busy_seconds_per_tick": busy,
        "utilisation": busy / tick,
        "exchange_seconds_per_tick": 0.0,
    }


def _timeline(stages: Sequence[Document], tick: float, ticks: int) -> Iterator[Document]:
    """Lockstep by a global clock: at tick t stage j runs a forward of one micro-batch and a backward of an older one."""
    longest = max(stage["distance"] for stage in stages)
    shift: dict[str, float] = {}
    for stage in stages:
        offset = shift.setdefault(stage["device"], 0.0)
        forward, backward = stage["seconds"]["forward"], stage["seconds"]["backward"]
        shift[stage["device"]] += forward + backward
        common = {"stage": stage["index"], "device": stage["device"]}
        for t in range(2 * longest + ticks):
            start = t * tick + offset
            if (m := t - (longest - stage["distance"])) >= 0:
                yield common | {"verb": "forward", "micro_batch": m, "start": start, "end": start + forward}
            if (m := t - (longest + stage["distance"])) >= 0:
                start += forward
                yield common | {"verb": "backward", "micro_batch": m, "start": start, "end": start + 0.98 * backward}
                if m % 2:
                    yield common | {
                        "verb": "update",
                        "micro_batch": m,
                        "start": start + 0.98 * backward,
                        "end": start + backward,
                    }
