"""The data sets of the core, as declarations: digits, noise, and anyone's torch Datasets.

Decision: this module has names, options and facts alone, without torch or numpy, so that the check of a specification
imports neither; the code that opens files is in one module for each format.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from attrs import frozen

from petra_graph.plugins import (
    AtLeast,
    AtMost,
    DataFacts,
    DataSetDeclaration,
    Each,
    GreaterThan,
    Length,
    LessThan,
    option,
)


@frozen(kw_only=True)
class DigitsOptions:
    """Split, augmentation and normalisation of scikit-learn's 1797 digits; there are no files."""

    test_share: float = option(
        "share of each class that is kept for the test; the run's seed does not change the choice",
        default=0.2,
        validator=[GreaterThan(0), LessThan(1)],
    )
    crop_padding: int = option(
        "black border around training images, out of which the original size is cropped at random; 0: no crop",
        default=0,
        unit="pixels",
        validator=AtLeast(0),
    )
    mean: tuple[float, ...] = option(
        "mean of each channel, in [0, 1]", default=(0.3053,), validator=[Length(1), Each(AtLeast(0), AtMost(1))]
    )
    std: tuple[float, ...] = option(
        "standard deviation of each channel, in [0, 1]", default=(0.3760,), validator=[Length(1), Each(GreaterThan(0))]
    )


@frozen(kw_only=True)
class RandomOptions:
    """The shape, type and number of the samples; no augmentation and no files."""

    shape: tuple[int, ...] = option(
        "shape of one sample", default=(3, 32, 32), validator=[Length(at_least=1), Each(AtLeast(1))]
    )
    dtype: Literal["uint8", "int64", "float32", "float64"] = option(
        "element type; floats are standard normal", default="uint8"
    )
    levels: int = option("integer samples lie in 0 .. levels - 1", default=256, validator=AtLeast(1))
    classes: int = option("targets lie in 0 .. classes - 1", default=10, validator=AtLeast(1))
    target_shape: tuple[int, ...] = option(
        "shape of one target: [] for a class a sample, [8] for a class each token of eight",
        default=(),
        validator=Each(AtLeast(1)),
    )
    train: int = option("training samples", default=4096, unit="samples", validator=AtLeast(1))
    test: int = option("test samples", default=512, unit="samples", validator=AtLeast(1))

    def __attrs_post_init__(self) -> None:
        if self.dtype == "uint8" and self.levels > 256:  # noqa: PLR2004  the values of uint8
            raise ValueError(f'levels must be at most 256 where dtype is "uint8" (got {self.levels})')


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
        """The data set, opened once: a Dataset may read files, and its facts follow from a sample of it."""
        from petra_graph.catalog.datasets.torch_datasets import open_datasets

        return open_datasets(self)


_HERE = "petra_graph.catalog.datasets"

DIGITS = DataSetDeclaration(
    summary="Handwritten digits of scikit-learn: 1,797 grey images 1x8x8 of 10 classes, real and offline.",
    options=DigitsOptions,
    build=f"{_HERE}.generated:digits",
    training_samples=lambda _: 1_438,
    facts=lambda options: DataFacts(shape=(1, 8, 8), classes=10, mean=options.mean, std=options.std),
)
RANDOM = DataSetDeclaration(
    summary="Noise with random targets, for benchmarks and dry runs: nothing can be learnt from it.",
    options=RandomOptions,
    build=f"{_HERE}.generated:noise",
    training_samples=lambda options: options.train,
    facts=lambda options: DataFacts(
        shape=options.shape, dtype=options.dtype, classes=options.classes, target_shape=options.target_shape
    ),
)
TORCH = DataSetDeclaration(
    summary="Your own torch Datasets with samples (x, y), named as code.",
    options=TorchOptions,
    build=f"{_HERE}.torch_datasets:torch_data_set",
    facts=lambda options: options.opened.facts,
)
