"""The data sets of the core, as declarations: digits and noise.

Decision: this module has names, options and facts alone, without torch or numpy, so that the check of a specification
imports neither; the code that opens files is in one module for each format.
"""

from __future__ import annotations

from typing import Literal

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
