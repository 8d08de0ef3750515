"""Files of images as pixels of eight bits, and the files below a folder."""

from __future__ import annotations

import os
import subprocess
from errno import ELOOP

import numpy as np
import pytest
from PIL import Image, ImageOps

from petra_graph.image_files import decode, visible_files

DARK, BRIGHT = 1_000, 40_000
"""Of 65,535: 3.9 and 155.6 of 255."""
NOISE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "image.png"


def refused(file):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  whole texts are compared
        decode(file)
    return str(caught.value)


def grey(values, *, big_endian=False):
    pixels = np.asarray(values, ">u2" if big_endian else np.uint16)
    return Image.frombytes("I;16B" if big_endian else "I;16", pixels.shape[::-1], pixels.tobytes())


@pytest.mark.parametrize(("form", "big_endian"), [("PNG", False), ("TIFF", False), ("TIFF", True)])
def test_sixteen_bits_become_eight_from_black_to_white(file, form, big_endian):
    """Pillow's conversion clips them: all but the darkest of 256 were white."""
    grey([[0, DARK, BRIGHT, 65_535]], big_endian=big_endian).save(file, form)
    assert np.asarray(decode(file)).tolist() == [[[0] * 3, [4] * 3, [156] * 3, [255] * 3]]


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "CMYK"])
def test_eight_bits_of_any_mode_are_those_of_torchvision(file, mode):
    image = Image.fromarray(NOISE).convert(mode)
    image.save(file, "TIFF")
    assert np.array_equal(decode(file), image.convert("RGB"))


@pytest.mark.parametrize(
    ("pixels", "mode"), [(np.zeros((4, 4), np.float32), "F"), (np.full((4, 4), 70_000, np.int32), "I")]
)
def test_numbers_without_black_and_white_are_refused(file, pixels, mode):
    """They became 0, 1 and 255 by their size."""
    Image.fromarray(pixels).save(file, "TIFF")
    assert refused(file) == f"its pixels have mode {mode}, and no known black and white; save 8 or 16 bits a channel"


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_image_is_turned_once(file, form, orientation):
    """Photos lay on their side, but for TIFFs, which Pillow turns."""
    image = Image.fromarray(NOISE)
    exif = Image.Exif()
    exif[274] = orientation
    image.save(file, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    with Image.open(file) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    assert np.array_equal(decode(file), expected)
    assert expected.shape[:2] == ((5, 7) if orientation < 5 else (7, 5))


@pytest.mark.parametrize("content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n", b"text"])
def test_no_program_is_started_whatever_a_file_holds(tmp_path, monkeypatch, content):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    file = tmp_path / "photo.jpg"
    file.write_bytes(content)
    assert refused(file) == "it is not an image of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP"


def found(folder):
    return sorted(os.path.relpath(file, folder) for file in visible_files(folder))


def test_hidden_ones_and_pipes_are_left_out(tmp_path):
    for name in ("a.png", "._a.png", "below/b.png", ".cache/c.png", "below/.d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.png")
    assert found(tmp_path) == ["a.png", "below/b.png"]


def test_a_link_to_a_folder_is_followed_unless_it_leads_back(tmp_path):
    """Each image was read once for every round that a path can take, 40 times."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others/a.png").write_bytes(b"")
    (tmp_path / "photos/link").symlink_to(tmp_path / "others")
    assert found(tmp_path / "photos") == ["link/a.png"]
    (tmp_path / "others/back").symlink_to(tmp_path / "photos")
    with pytest.raises(OSError, match="it is a link to a folder that it is in") as caught:
        found(tmp_path / "photos")
    assert (caught.value.errno, caught.value.filename) == (ELOOP, f"{tmp_path}/photos/link/back")
