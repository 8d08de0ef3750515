"""Devices, stages and depths that cannot be, which `validate` knows without torch: the whole output."""

from __future__ import annotations

from tests.support.specs import SPEC


def test_an_unknown_device_type(validate):
    assert validate(SPEC + '[partition]\ndevices = 2\ndevice_type = ["h100", "abacus"]\n') == (
        2,
        """\
a.toml:30:15: unknown device type "abacus"
    device_type = ["h100", "abacus"]
    help: allowed: a10, a100-40gb, a100-80gb, a40, cpu, h100, h200, l4, l40, l40s, rtx3080, rtx3090, rtx4080, rtx4090, rtx5090, rtxa6000, t4, v100; [partition.device.abacus] states one of your own
""",
    )


OWN = """
[partition]
device_type = "my_card"
[partition.device.my_card]
memory = "24GiB"
flops = { float32 = 40e12 }
memory_bandwidth = 900e9
"""


def test_a_device_type_of_ones_own_that_misses_a_figure(validate):
    """It is not said to be unknown as well."""
    assert validate(SPEC + OWN.replace("memory_bandwidth = 900e9\n", "")) == (
        2,
        """\
a.toml:31:1: memory_bandwidth is missing in [partition.device.my_card]
    [partition.device.my_card]
    help: memory_bandwidth: bandwidth of its memory
""",
    )


def test_a_device_type_of_ones_own_with_the_name_of_a_card(validate):
    assert validate(SPEC + OWN.replace("my_card", "h100")) == (
        2,
        """\
a.toml:31:19: "h100" is a device type already, with the figures of its data sheet
    [partition.device.h100]
    help: give yours another name, such as my-h100, and name that in device_type
""",
    )


def test_figures_that_no_device_has(validate):
    wrong = OWN.replace("24GiB", "24 gigs").replace("40e12", "-40").replace("900e9", "900")
    assert validate(SPEC + wrong) == (
        2,
        """\
a.toml:32:10: memory in [partition.device.my_card] is refused: a size is a number and a unit, as in "40GiB" or "40GB" (got "24 gigs")
    memory = "24 gigs"
a.toml:33:21: float32 in [partition.device.my_card.flops] must be at least 100000000 (got -40)
    flops = { float32 = -40 }
a.toml:34:20: memory_bandwidth in [partition.device.my_card] must be at least 100000000 (got 900)
    memory_bandwidth = 900
3 problems
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
a.toml:29:10: 4 stages for 3 nodes: each stage needs at least one
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
