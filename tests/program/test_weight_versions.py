"""Copies of parameters: one for each distinct version that a micro-batch in flight uses."""

from __future__ import annotations

import pytest

from petra_graph.program.schedule import order
from petra_graph.program.weight_versions import WeightVersions


def test_a_version_is_copied_before_it_changes_and_dropped_with_its_last_user():
    copies = iter("ab")
    versions = WeightVersions(lambda: next(copies))
    versions.begin(0)
    versions.begin(1)
    assert versions.older(0) is None
    versions.before_step()
    assert (versions.older(0), versions.older(1), versions.copies) == ("a", "a", {0: "a"})
    assert versions.end(0) is None
    assert versions.end(1) == "a"
    assert not versions.copies
    versions.before_step()
    assert not versions.copies, "no micro-batch uses the version"


def test_a_kept_graph_has_its_copy_at_once():
    versions = WeightVersions(list)
    versions.begin(0)
    assert versions.copy_for(0) is versions.copy_for(0)
    assert versions.older(0) is None


@pytest.mark.parametrize(("depth", "accumulation"), [(1, 1), (5, 1), (5, 2), (9, 4)])
def test_there_are_at_most_as_many_copies_as_the_paper_counts(depth, accumulation):
    versions, most = WeightVersions(list), 0
    for action in order(depth, range(40), accumulation):
        match action.verb:
            case "forward":
                versions.begin(action.micro_batch)
            case "backward":
                versions.end(action.micro_batch)
            case "update":
                versions.before_step()
        most = max(most, len(versions.copies))
    assert most == -(-(depth - 1) // accumulation)
    assert not versions.copies
