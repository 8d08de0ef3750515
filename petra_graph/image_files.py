"""Files of images as pixels of eight bits: the rule of folders, of predictions, and of the images that a torch Dataset returns.

The decoders are named, since Pillow chooses one by a file's content, and that of PostScript starts Ghostscript. An image is turned as its EXIF
orientation says. 16 bits become 8 by 1/257, which takes white to white; numbers whose black and white no file says are refused: Pillow would clip them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from errno import ELOOP
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_DECODERS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB"})
_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
"""PIL's modes, without those of other values: I has 32 bits, F floats."""
_PLAIN_GREY = ((16,), 1)
"""A TIFF's bits, and its photometric interpretation: 0 is black. Pillow also reads 12 bits, and white as 0, into 16 bits as they stand."""


def decode(file: str | Path, mode: str = "RGB") -> Image.Image:
    """Return the first picture of a file in one of PIL's modes of eight bits. Raises ValueError: it cannot be decoded."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # they name no file; what spoils pixels is raised
        try:
            with Image.open(file, formats=_DECODERS) as image:
                # An image whose EXIF data is damaged stays as it is: Pillow raises whatever its parser meets.
                with suppress(Exception):
                    ImageOps.exif_transpose(image, in_place=True)
                return eight_bits(image).convert(mode)
        except UnidentifiedImageError:
            formats = f"it is not an image of {', '.join(sorted(_DECODERS))}"
            raise ValueError(formats if Path(file).stat().st_size else "it is empty") from None
        except (OSError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
            raise ValueError(getattr(error, "strerror", None) or str(error) or type(error).__name__) from error


def resize_and_crop(image: Image.Image, resized: tuple[int, int], size: tuple[int, int]) -> Image.Image:
    """Return an image resized to a width and height, and cropped at the centre to others, as torchvision does both."""
    left, top = (round((side - part) / 2) for side, part in zip(resized, size, strict=True))
    return image.resize(resized, Image.Resampling.BILINEAR).crop((left, top, left + size[0], top + size[1]))


def eight_bits(image: Image.Image) -> Image.Image:
    """Return an image whose channels have eight bits, itself if they have. Raises ValueError: its mode does not say what is black and what is white."""
    if image.mode in _EIGHT_BITS:
        return image
    found, tags = "", getattr(image, "tag_v2", {})
    # Pillow brings a PGM's values to 16 bits, whatever its greatest one is, and calls them I.
    if image.mode not in _SIXTEEN_BITS and (image.format, image.mode) != ("PPM", "I"):
        found = f"mode {image.mode}"
    elif tags and (tags.get(Base.BitsPerSample), tags.get(Base.PhotometricInterpretation)) != _PLAIN_GREY:
        found = "12 bits, or white as 0"
    if found:
        raise ValueError(f"its pixels have {found}, and no known black and white; save 8 or 16 bits a channel")
    return Image.fromarray(((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8))


def visible_files(folder: Path) -> Iterator[str]:
    """Yield the files below a folder in no order; raise OSError if one cannot be read, or a link leads back to a folder that it is in."""
    waiting = [(str(folder), frozenset({os.path.realpath(folder)}))]
    while waiting:
        at, above = waiting.pop()
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    linked = {os.path.realpath(entry.path)} if entry.is_symlink() else set[str]()
                    if linked & above:
                        raise OSError(ELOOP, "it is a link to a folder that it is in", entry.path)
                    waiting.append((entry.path, above | linked))
                elif entry.is_file():
                    yield entry.path
