"""torch Datasets as a data set: options and declaration, without torch."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from attrs import frozen

from petra_graph.plugins import AtLeast, DataSetDeclaration, Length, option


@frozen(kw_only=True)
class TorchOptions:
    """Samples (x, y) of torch Datasets. A call opens them already when the specification is checked, and reads one sample."""

    train: str = option(
        'training Dataset, map-style or iterable, or a function or class that makes it, as "my_file:make_train"',
        is_code=True,
    )
    test: str = option("test Dataset, map-style, in the same way", is_code=True)
    validation: str | None = option(
        'validation Dataset, in the same way, which data.validation = "validation" names', default=None, is_code=True
    )
    plain: str | None = option(
        "training Dataset without augmentation, in the same way: a share of it is the validation samples if data.validation is one; that "
        "of `train` if it augments nothing",
        default=None,
        is_code=True,
    )
    classes: int | tuple[str, ...] | None = option(
        "number of classes, or their names; default: y is no class, as in regression",
        default=None,
        validator=[AtLeast(1), Length(at_least=1)],
    )

    @cached_property
    def opened(self) -> Any:
        """The `TorchDataSet`, opened once: a Dataset may read files, and its facts follow from a sample of it."""
        from petra_graph_modules.datasets.open_datasets import open_datasets

        return open_datasets(self)


TORCH = DataSetDeclaration(
    summary="Your own torch Datasets with samples (x, y), named as code.",
    options=TorchOptions,
    build="petra_graph_modules.datasets.open_datasets:torch_data_set",
    facts=lambda options: options.opened.facts,
)
