"""What the data sets of this package share: options, facts, and how their files are read.

Every augmentation default is the one of the paper's recipe (PETRA, section 4: horizontal flip, random crop); means and
standard deviations are those of each training set, a channel each, in [0, 1].
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from petra_graph.errors import SpecError
from petra_graph.plugins import AtLeast, AtMost, GreaterThan, Length
from petra_graph_vision.transforms import check_transforms

Root = Annotated[Path, "folder of the files; ~ and $NAME are expanded", Length(at_least=1)]
Flip = Annotated[bool, "mirror training images left to right, half of them on average"]
Padding = Annotated[
    int,
    "black border around training images, out of which the original size is cropped at random, pixels; 0: no crop",
    AtLeast(0),
]
Augment = Annotated[
    tuple[dict[str, Any], ...],
    "transforms of torchvision.transforms.v2 for each training image behind the crop and the flip, by their names and options: "
    '[{ name = "RandAugment", num_ops = 2 }]',
    partial(check_transforms, mixing=False),
]
Mix = Annotated[
    tuple[dict[str, Any], ...],
    'MixUp, CutMix, or a list of both, of which one is drawn for each micro-batch of a training: [{ name = "MixUp", alpha = 0.2 }]; '
    "targets are then shares of the classes",
    partial(check_transforms, mixing=True),
]
_Means = tuple[Annotated[float, AtLeast(0), AtMost(1)], ...]
_Stds = tuple[Annotated[float, GreaterThan(0)], ...]
Mean = Annotated[_Means, "mean of each channel, in [0, 1]", Length(3)]
GreyMean = Annotated[_Means, "mean of the channel, in [0, 1]", Length(1)]
Std = Annotated[_Stds, "standard deviation of each channel, in [0, 1]", Length(3)]
GreyStd = Annotated[_Stds, "standard deviation of the channel, in [0, 1]", Length(1)]


def expanded(root: Path) -> Path:
    return Path(os.path.expandvars(root)).expanduser().absolute()


@contextmanager
def reading(what: str, hint: str) -> Iterator[None]:
    """Say what torchvision, or a damaged file, raises as a problem of `root`."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{what} cannot be read: {str(error) or type(error).__name__}", hint, ("root",)) from error
