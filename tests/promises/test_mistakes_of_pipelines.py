"""Devices, stages and depths that cannot be, which `validate` knows without torch: the whole output."""

from __future__ import annotations

from tests.support.specs import SPEC


def test_an_unknown_device_type(validate):
    assert validate(SPEC + '[partition]\ndevices = 2\ndevice_type = ["h100", "abacus"]\n') == (
        2,
        """\
a.toml:30:15: unknown device type "abacus"
    device_type = ["h100", "abacus"]
    help: allowed: a100-40gb, a100-80gb, cpu, h100, h200, l4, l40, l40s, rtx3090, rtx4090, t4, v100
""",
    )


def test_fewer_memory_sizes_than_devices(validate):
    assert validate(SPEC + '[partition]\ndevices = 3\nmemory = ["1GiB", "2GiB"]\n') == (
        2,
        """\
a.toml:30:10: memory lists 2 values for 3 devices
    memory = ["1GiB", "2GiB"]
    help: give one value for all, or one a device
""",
    )


def test_a_device_of_no_kind(validate):
    assert validate(SPEC + '[partition]\ndevices = ["cpu", "gpu:0"]\n') == (
        2,
        """\
a.toml:29:19: "gpu:0" is not a device
    devices = ["cpu", "gpu:0"]
    help: allowed: "cpu", and "cuda:0", "cuda:1", ...
""",
    )


def test_more_stages_than_nodes(validate):
    assert validate(SPEC + "[partition]\nstages = 4\n") == (
        2,
        """\
a.toml:29:10: 4 stages for 3 nodes: a stage holds one at least
    stages = 4
    help: set it to 3 or less
""",
    )


def test_negative_depths(validate):
    assert validate(SPEC.replace('"lockstep"', "[-1, -3, 1]")) == (
        2,
        """\
a.toml:26:13: schedule[0] in [method] must be at least 1 (got -1)
    schedule = [-1, -3, 1]
a.toml:26:17: schedule[1] in [method] must be at least 1 (got -3)
    schedule = [-1, -3, 1]
2 problems
""",
    )


def test_depths_that_grow(validate):
    assert validate(SPEC.replace('"lockstep"', "[1, 2, 1]")) == (
        2,
        """\
a.toml:26:12: stage 2 would wait for ever: its depth is 2, and stage 1, which feeds it, has 1
    schedule = [1, 2, 1]
    help: depths must not grow along an edge; 1f1b has [3, 2, 1] here
""",
    )


def test_a_last_stage_that_looks_ahead(validate):
    assert validate(SPEC.replace('"lockstep"', "[2, 2, 2]")) == (
        2,
        """\
a.toml:26:12: the last stage differentiates at once, so its depth is 1 (got 2)
    schedule = [2, 2, 2]
    help: 1f1b has [3, 2, 1] here
""",
    )


def test_depths_of_other_stages_than_the_cut(validate):
    """The network is cut later, but into a number of stages that is known."""
    assert validate(SPEC.replace('"lockstep"', "[5, 3, 1]") + "[partition]\nstages = 2\n") == (
        2,
        """\
a.toml:26:12: 3 depths for 2 stages
    schedule = [5, 3, 1]
    help: 1f1b has [2, 1] in a chain
""",
    )


def test_depths_that_no_cut_allows(validate):
    assert validate(SPEC.replace('"lockstep"', "[1, 2]") + "[partition]\nstages = 2\n") == (
        2,
        """\
a.toml:26:12: stage 2 would wait for ever: its depth is 2, and stage 1, which feeds it, has 1
    schedule = [1, 2]
    help: depths must not grow along an edge; 1f1b has [2, 1] in a chain
a.toml:26:12: the last stage differentiates at once, so its depth is 1 (got 2)
    schedule = [1, 2]
    help: 1f1b has [2, 1] in a chain
2 problems
""",
    )
