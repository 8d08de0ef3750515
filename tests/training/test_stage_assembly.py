"""Initial parameters follow from seed and node alone; samples are normalised as the data set says."""

from __future__ import annotations

import torch

from tests.support.pipelines import REVNET, pipeline

IMAGE = (3, 6, 6)


def same(one, other) -> set[str]:
    return {key for key in one if torch.equal(one[key], other[key])}


def test_neither_partition_nor_method_changes_initial_parameters():
    one = pipeline(REVNET, IMAGE).parameters()
    cut = pipeline(REVNET, IMAGE, stages=(("stem", "a0", "a1"), ("down", "b0", "head"))).parameters()
    plain = pipeline(REVNET, IMAGE, method="backprop").parameters()
    assert same(one, cut) == same(one, plain) == set(one)


def test_nodes_of_one_shape_start_differently():
    one = pipeline(REVNET, IMAGE).parameters()
    assert not torch.equal(one["a0/first.0.weight"], one["a1/first.0.weight"])


def test_a_node_keeps_its_parameters_when_others_come_and_go():
    one, fewer = pipeline(REVNET, IMAGE).parameters(), pipeline((*REVNET[:2], *REVNET[3:]), IMAGE).parameters()
    assert same(fewer, one) == set(fewer)
