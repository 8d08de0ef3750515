"""Every plugin of the package keeps the promises of its kind, and its declarations import no torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import pytest
from petra_graph_conformance import ArchitectureTrial, Trial, check_imports_no_torch, parametrize_with_checks
from petra_graph_torchvision import architectures, declared

from petra_graph.plugins import DataFacts, SpecError

DIGITS = DataFacts(shape=(1, 8, 8), classes=10)


def of(network: str, node: str, side: int = 32, **more: Any) -> dict[str, Any]:
    return {"network": network, "node": node, "classes": 10, "sides": (side, side), **more}


def reversible(**options: Any) -> tuple[Trial, Trial]:
    trained = of("mnasnet0_5", "layers.8.1", **options)
    entry = Trial.of(declared.DUAL_RESIDUAL_ENTRY, [(16, 3, 3)], trained)
    return entry, Trial.of(declared.DUAL_RESIDUAL, [(16, 3, 3)] * 2, trained)


@parametrize_with_checks(
    Trial.of(declared.PIECE, [(1, 5, 5)], of("mnasnet0_5", "layers.0", 8)),
    Trial.of(declared.PIECE, [(16, 4, 4)], of("mobilenet_v3_small", "features.1")),
    Trial.of(declared.PIECE, [(48, 4, 4)], of("shufflenet_v2_x0_5", "stage2.1")),
    Trial.of(
        declared.PIECE,
        [(64, 4, 4), (32, 4, 4), (32, 4, 4)],
        of("densenet121", "features.denseblock1.denselayer3"),
    ),
    Trial.of(declared.HEAD, [(1280, 2, 2)], of("mnasnet0_5", "classifier.1")),
    *reversible(),
    *reversible(alpha=0.3, beta=0.7),
    ArchitectureTrial.of(architectures.TORCHVISION, {"network": "resnet18"}, facts=DIGITS),
    ArchitectureTrial.of(architectures.TORCHVISION, {"network": "squeezenet1_1", "resize": 32}, facts=DIGITS),
    ArchitectureTrial.of(architectures.DR2NET, {"network": "resnet18"}, facts=DIGITS),
)
def test_a_promise(check: Callable[[], None]) -> None:
    check()


def test_declarations_import_no_torch() -> None:
    check_imports_no_torch("petra_graph_torchvision.declared")
    check_imports_no_torch("petra_graph_torchvision.architectures")


def test_all_are_registered() -> None:
    found = {
        entry.load()
        for group in ("blocks", "architectures")
        for entry in entry_points(group=f"petra_graph.{group}")
        if entry.value.startswith("petra_graph_torchvision.")
    }
    ours = {
        value
        for module in (declared, architectures)
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and hasattr(value, "build")
    }
    assert found == ours
    assert len(ours) == 6


@pytest.mark.parametrize(
    ("facts", "paths"),
    [
        (DataFacts(shape=(8,), dtype="float32"), [(), ("classes",)]),
        (DataFacts(shape=(2, 8, 8), classes=10), [()]),
    ],
)
def test_samples_that_no_network_reads(facts: DataFacts, paths: list[tuple[str, ...]]) -> None:
    options = architectures.ArchitectureOptions(network="resnet18")
    with pytest.raises(SpecError) as raised:
        architectures.torchvision(options, facts)
    assert [problem.path for problem in raised.value.problems] == paths


def test_networks_without_residual_blocks_in_a_row_are_not_converted() -> None:
    with pytest.raises(SpecError, match="vgg11 has no two residual blocks"):
        architectures.dr2net(architectures.Dr2NetOptions(network="vgg11"), DIGITS)


@pytest.mark.parametrize(
    ("network", "meant"), [("resnet19", "did you mean 'resnet18'"), ("fcn", "families: alexnet, convnext")]
)
def test_names_that_torchvision_does_not_have(network: str, meant: str) -> None:
    with pytest.raises(ValueError, match=meant):
        architectures.ArchitectureOptions(network=network)
