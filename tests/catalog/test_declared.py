"""Declarations: what a specification is checked with, before anything heavy is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from typing import Literal, get_args, get_origin, get_type_hints

import attrs
import pytest

from petra_graph.catalog import declared as losses
from petra_graph.catalog import lr_schedules
from petra_graph.catalog.datasets import declared_datasets as datasets
from petra_graph.catalog.optimizers import declared_optimizers as optimizers
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.registry.registry import discover

MODULES = [
    "datasets.declared_datasets",
    "optimizers.declared_optimizers",
    "lr_schedules",
    "architectures",
    "declared",
]
REGISTRY = discover().only(["petra-graph"])
DECLARATIONS = [
    REGISTRY.resolve(kind, name).declaration
    for kind in REGISTRY.kinds
    if kind is not BLOCK
    for name in REGISTRY.names(kind)
]


@pytest.mark.processes
def test_declarations_import_neither_torch_nor_numpy():
    imports = "; ".join(f"import petra_graph.catalog.{module}" for module in MODULES)
    code = f"import sys; {imports}; print(sorted({{'torch', 'numpy', 'torchvision', 'PIL'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda declaration: declaration.build)
def test_declaration_names_code_that_is_there(declaration):
    module, attribute = declaration.build.split(":")
    assert callable(getattr(import_module(module), attribute))
    assert declaration.summary.endswith(".")
    assert not declaration.options.__doc__.startswith("Options of"), "`show` prints it below the name, which it repeats"
    for field in attrs.fields(declaration.options):
        assert field.kw_only
        assert field.metadata["help"]


@pytest.mark.parametrize(
    ("declaration", "options", "facts"),
    [
        (
            datasets.DIGITS,
            datasets.DigitsOptions(),
            DataFacts(shape=(1, 8, 8), classes=10, mean=(0.3053,), std=(0.3760,)),
        ),
        (
            datasets.RANDOM,
            datasets.RandomOptions(shape=(7,), dtype="float32", classes=3),
            DataFacts(shape=(7,), dtype="float32", classes=3),
        ),
    ],
)
def test_facts_follow_from_the_options_alone(declaration, options, facts):
    assert facts == declaration.facts(options)


@pytest.mark.parametrize(
    ("message", "options", "values"),
    [
        ("nesterov = true needs a momentum above 0", optimizers.SgdOptions, {"momentum": 0.0}),
        ("momentum must be less than 1", optimizers.SgdOptions, {"momentum": 1.0}),
        ("betas must have 2 items", optimizers.AdamOptions, {"betas": (0.9,)}),
        ("label_smoothing must be less than 1", losses.CrossEntropyOptions, {"label_smoothing": 1.0}),
        ("must increase \\(got \\[2, 1\\]\\)", lr_schedules.StepOptions, {"milestones": (2, 1)}),
        ("final must be at most 1", lr_schedules.CosineOptions, {"final": 1.5}),
        ("power must be greater than 0", lr_schedules.PolynomialOptions, {"power": 0.0}),
        ("mean must have 1 item", datasets.DigitsOptions, {"mean": (0.5, 0.5)}),
        ("std\\[0\\] must be greater than 0", datasets.DigitsOptions, {"std": (0.0,)}),
        ("test_share must be less than 1", datasets.DigitsOptions, {"test_share": 1.0}),
        ('at most 256 where dtype is "uint8"', datasets.RandomOptions, {"levels": 257}),
    ],
)
def test_options_out_of_range_or_contradictory_are_refused(message, options, values):
    with pytest.raises(ValueError, match=message):
        options(**values)


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda declaration: declaration.build)
def test_an_option_with_choices_explains_those_alone(declaration):
    for key, annotation in get_type_hints(declaration.options).items():
        if get_origin(annotation) is Literal:
            quoted = re.findall(r'"([\w-]+)"', attrs.fields_dict(declaration.options)[key].metadata["help"])
            assert set(quoted) <= set(get_args(annotation)), key
