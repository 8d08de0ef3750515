"""The offline file of Weights & Biases has the values of `metrics.jsonl`, to the bit.

The file is a log of LevelDB whose records are messages of wandb's own protocol; wandb reads it in its service alone.
"""

from __future__ import annotations

import json
import struct
import time

import pytest

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.loggers import named, recorded
from tests.support.runs import SPEC, only_run
from tests.support.stopping import StopAt

pytest.importorskip("wandb")
pytestmark = [
    pytest.mark.processes,  # its service
    pytest.mark.filterwarnings("default"),  # those of wandb are none of ours
]


BLOCK_BYTES, HEADER_BYTES = 32768, 7
FULL, FIRST, LAST = 1, 2, 4


def contents(file):
    """Yield the records of a log: blocks of chunks, each with checksum, length and kind before its bytes."""
    content, at, parts = file.read_bytes(), HEADER_BYTES, b""
    assert content.startswith(b":W&B")
    while at + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        chunk = content[at + HEADER_BYTES : at + HEADER_BYTES + length]
        parts = chunk if kind in {FULL, FIRST} else parts + chunk
        at += HEADER_BYTES + length
        if kind in {FULL, LAST}:
            yield parts


def stored(file):
    """Return the history and the run of an offline file."""
    from wandb.proto import wandb_internal_pb2

    values, head = {}, None
    for content in contents(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "run":
            head = record.run
        if record.WhichOneof("record_type") != "history":
            continue
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_") and name not in {"epoch", "step"}:
                values.setdefault(name, []).append((items["step"], value))
    return values, head


def test_the_same_values_to_the_bit(write):
    settings = [
        "callback.probe.options.per_epoch=3",
        "run.log_every=1",
    ]  # a probe's values come behind those of later steps
    run(write("small.toml", SPEC + named("callback", "wandb", "probe")), settings, Listener())
    directory = only_run()
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    values, head = stored(file)
    assert values == recorded(directory)
    assert head.display_name == directory.name
    assert head.run_id == json.loads((directory / "wandb.json").read_text())["run_id"]


def test_a_run_that_goes_on_is_the_same_run_of_wandb(write):
    run(write("small.toml", SPEC + named("callback", "wandb")), (), StopAt("trained 2/5"))
    directory = only_run()
    time.sleep(1.1)  # wandb's folders have names by the second
    assert main(["run", "--resume", "latest"]) == 0
    first, second = (stored(file) for file in sorted(directory.glob("wandb/offline-run-*/*.wandb")))
    assert first[1].run_id == second[1].run_id
    together = {name: {*first[0].get(name, ()), *values} for name, values in second[0].items()}
    assert together == {name: set(values) for name, values in recorded(directory).items()}
