"""Number formats that exclude one another."""

from __future__ import annotations

import pytest

from petra_graph.compiler.spec_checks import check_precision
from petra_graph.errors import Problem, SpecError
from petra_graph.spec.model import PrecisionSpec


def test_on_a_grid_nothing_is_rounded_once_more():
    with pytest.raises(SpecError) as caught:
        check_precision(PrecisionSpec(streams="grid", buffer_dtype="bfloat16", channel_dtype="int8"))
    assert caught.value.problems == tuple(
        Problem(
            message=f'{name} = "{stored}" rounds streams once more, and streams = "grid" is there to reconstruct them '
            "to the bit",
            hint=f'leave out {name}, or set precision.streams = "float"',
            path=("precision", name),
        )
        for name, stored in (("buffer_dtype", "bfloat16"), ("channel_dtype", "int8"))
    )


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_what_changes_nothing_is_allowed(compute):
    check_precision(
        PrecisionSpec(
            compute=compute, streams="grid", buffer_dtype="float32", channel_dtype="float32", buffer_device="cpu"
        )
    )


def test_without_a_grid_everything_is():
    check_precision(PrecisionSpec(buffer_dtype="int8", channel_dtype="float16"))


def test_float32_is_smaller_than_float64():
    with pytest.raises(SpecError):
        check_precision(PrecisionSpec(compute="float64", streams="grid", channel_dtype="float32"))
