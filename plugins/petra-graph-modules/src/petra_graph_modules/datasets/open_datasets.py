"""The Datasets that a specification names, opened: each is made, and its first sample says what the others are like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from torch import Tensor, int64

from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import DataFacts, named_code, seeded
from petra_graph_modules.datasets.first_sample import read_first_sample
from petra_graph_modules.datasets.sample_tensors import describe, map_part, name_tensors, type_name
from petra_graph_modules.datasets.splits import TorchSplit, TorchStream, is_iterable
from petra_graph_modules.declared_datasets import TorchOptions


@frozen(kw_only=True, eq=False)
class TorchDataSet:
    """The splits and the facts of torch Datasets."""

    train: TorchSplit | TorchStream
    test: TorchSplit
    validation: TorchSplit | None
    facts: DataFacts


def torch_data_set(options: TorchOptions) -> TorchDataSet:
    """Return the data set that the check of the specification has opened."""
    data: TorchDataSet = options.opened
    return data


def open_datasets(options: TorchOptions) -> TorchDataSet:
    """Make the Datasets and read the first sample of each.

    Raises:
        SpecError: the code was not found, it is no Dataset, or its first sample is not a pair that can be trained on.
    """
    named = {name: getattr(options, name) for name in ("train", "test", "validation", "plain")}
    datasets = {name: _make_dataset(name, code) for name, code in named.items() if code is not None}
    first = {name: read_first_sample(name, dataset) for name, dataset in datasets.items()}
    facts = _find_facts(*first["train"], options.classes)
    splits = {
        name: TorchSplit(dataset=datasets[name], facts=facts, part=part)
        for name, part in {"test": "test", "validation": "validation", "plain": "validation"}.items()
        if name in datasets
    }
    train = TorchSplit(dataset=datasets["train"], facts=facts, part="training", unaugmented=splits.get("plain"))
    return TorchDataSet(
        train=TorchStream(dataset=train.dataset, read=train.read) if is_iterable(train.dataset) else train,
        test=splits["test"],
        validation=splits.get("validation"),
        facts=facts,
    )


def _make_dataset(option: str, location: str) -> Any:
    """Return the Dataset that an option names, made where it names a class or a function."""
    code = named_code(option, location)
    is_made = not callable(code) or (hasattr(code, "__getitem__") and not isinstance(code, type))
    with seeded(0):  # what it draws while it is made is the same in every process
        dataset = code if is_made else code()
    if option == "train" and is_iterable(dataset):
        return dataset
    if is_iterable(dataset) or not all(hasattr(dataset, name) for name in ("__len__", "__getitem__")):
        fault = f"is {type(dataset).__name__}, not a map-style Dataset"
    elif not len(dataset):
        fault = "has no samples"
    else:
        return dataset
    hint = (
        "give an object with __len__ and __getitem__, or what makes one; of a DataLoader, give its `dataset`; only `train` may be an "
        "IterableDataset: elsewhere, name a function that returns list(itertools.islice(stream, N))"
    )
    raise SpecError(Problem(message=f"{location} {fault}", hint=hint, path=(option,)))


def _find_facts(x: Any, y: Any, classes: int | Sequence[str] | None) -> DataFacts:
    if classes is not None and not (isinstance(y, Tensor) and y.dtype == int64):
        came = ", ".join(f"{place} {describe(one)}".lstrip() for place, one in name_tensors("", y).items())
        message = f"classes are counted by integers, and y of sample 0 is {came}"
        hint = "return an integer as y, or leave `classes` out where y is no class"
        raise SpecError(Problem(message=message, hint=hint, path=("classes",)))
    names = tuple(classes) if isinstance(classes, Sequence) else None
    return DataFacts(
        shape=map_part(lambda one: tuple(one.shape), x),
        dtype=map_part(type_name, x),
        classes=len(classes) if isinstance(classes, Sequence) else classes,
        class_names=names,
        target_shape=map_part(lambda one: tuple(one.shape), y),
        target_dtype=map_part(type_name, y),
    )
