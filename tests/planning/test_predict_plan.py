"""What a plan says of the memory that is left."""

from __future__ import annotations

from petra_graph.planning.plan_spec import plan
from tests.support.runs import SPEC


def test_memory_to_spare(write):
    spec = write("small.toml", SPEC)
    limited, free = (plan(spec, more) for more in (("partition.memory=1GiB",), ()))
    spare = [one.certainty.spare_bytes for one in (limited, free)]
    assert spare == [2**30 - limited.peak_bytes, None], "how much a CPU has is not known"
