"""What a constructor draws is held back until it is wanted, and drawn at once if it is read."""

from __future__ import annotations

import torch
from petra_graph_modules.cutting.deferred_values import DeferredValues, carry_out


def test_values_that_a_constructor_reads_are_drawn_at_once() -> None:
    held = DeferredValues()
    with held:
        read = torch.empty(100).normal_()
        twice = read * 2.0
        kept = torch.empty(3, 2).uniform_().mul_(5.0)
        part = torch.empty(4, 2)
        part[0].normal_()
    assert torch.equal(twice, 2.0 * read)
    assert held.take(read) == ()
    assert held.take(part) == ()
    steps = held.take(kept)
    assert [str(step.function) for step in steps] == ["aten.uniform_.default", "aten.mul_.Tensor"]
    carry_out(steps, kept)
    assert 0.0 <= kept.min() < kept.max() <= 5.0


def test_it_says_whether_drawn_values_could_not_be_held_back():
    def drawn_at_once(act) -> bool:
        held = DeferredValues()
        with held:
            act(torch.empty(4))
        return held.drawn_at_once

    assert not drawn_at_once(lambda tensor: tensor.normal_().mul_(2.0))
    assert drawn_at_once(lambda tensor: tensor.normal_()[:2].zero_())
    assert not drawn_at_once(lambda tensor: (tensor.normal_()[:2].zero_(), tensor.zero_()))
    assert drawn_at_once(lambda _: torch.randn(3))
