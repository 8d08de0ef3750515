"""Options that several data sets share, in one wording."""

from __future__ import annotations

from typing import Any

from attrs.validators import and_, deep_iterable, ge, gt, le, max_len, min_len, optional

from petra_graph.registry.contracts import option


def root(layout: str) -> Any:
    """Return the required key `root`, the folder of the files."""
    return option(f"folder that holds {layout}; ~ and $NAME are expanded", validator=min_len(1))


def download() -> Any:
    """Return the key `download`."""
    return option("download missing files into root; without this, no file is downloaded", default=False)


def crop_padding(default: int) -> Any:
    """Return the key `crop_padding`."""
    return option(
        "black border around training images, out of which the original size is cropped at random; 0: no crop",
        default=default,
        unit="pixels",
        validator=ge(0),
    )


def flip() -> Any:
    """Return the key `flip`."""
    return option("mirror training images left to right, half of them on average", default=True)


def mean(*default: float) -> Any:
    """Return the key `mean`, of as many channels as its default."""
    length = len(default)
    valid: Any = and_(min_len(length), max_len(length), deep_iterable(and_(ge(0), le(1))))
    return option("mean of each channel, in [0, 1]", default=default, validator=valid)


def std(*default: float) -> Any:
    """Return the key `std`, of as many channels as its default."""
    length = len(default)
    valid: Any = and_(min_len(length), max_len(length), deep_iterable(gt(0)))
    return option("standard deviation of each channel, in [0, 1]", default=default, validator=valid)


def classes(default: int | None) -> Any:
    """Return the key `classes` of folders; None: any number."""
    return option("number of class folders that must be there", default=default, validator=optional(ge(2)))
