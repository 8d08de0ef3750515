"""Images in folders become batches that `cifar10` reads as the same images."""

from __future__ import annotations

import numpy as np
from petra_graph_vision.data_set_options import Cifar10Options, ImageFolderOptions
from petra_graph_vision.folder_sets import image_folder
from petra_graph_vision.pickled_sets import cifar10
from PIL import Image

from tools.make_cifar10_batches import main


def samples(split):
    images, targets = split.fetch(np.arange(len(split)), seed=0, epoch=0)
    return sorted(zip(targets.tolist(), images.flatten(1).tolist(), strict=True))


def test_the_batches_hold_the_folders_images(tmp_path, capsys):
    generator = np.random.default_rng(0)
    for half, n in (("train", 2), ("test", 1)):
        for label in range(10):
            folder = tmp_path / "images" / half / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(n):
                pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")

    assert main([str(tmp_path / "images"), str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/cifar-10-batches-py\n"

    plain = {"crop_padding": 0, "flip": False}
    folders = image_folder(ImageFolderOptions(root=str(tmp_path / "images"), size=32, **plain))
    batches = cifar10(Cifar10Options(root=str(tmp_path), **plain))
    assert samples(folders.train) == samples(batches.train)
    assert samples(folders.test) == samples(batches.test)


def test_wrong_usage_explains_itself(capsys):
    assert main([]) == 2
    assert "FOLDER holds train/ and test/" in capsys.readouterr().err


def test_a_folder_without_images_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path)]) == 2
    assert f"{tmp_path}/train is not a folder" in capsys.readouterr().err
