"""Folders of images: `image-folder` and `imagenet`."""

import numpy as np
import pytest
import torch
from petra_graph_vision.folder_sets import ImageFolder, ImageNet, random_box
from PIL import Image

from petra_graph.errors import RunFailed, SpecError
from tests.support import kit


def opened(root, **options):
    return kit.opened(ImageFolder, root=str(root), **({"size": 16} | options))


def refused(root, build=opened, **options):
    with pytest.raises(SpecError) as caught:
        build(root, **options)
    (problem,) = caught.value.problems
    assert problem.path == ("root",)
    return problem


def imagenet_opened(root, **options):
    return kit.opened(ImageNet, root=str(root), **options)


def test_class_folders_without_a_split_are_split_the_same_in_every_run(folder_root):
    data = opened(folder_root / "train", test_share=0.25)
    assert (data.train.targets.tolist(), data.test.targets.tolist()) == ([0] * 5 + [1] * 4, [0] * 2 + [1])
    files = [data.train.pixels.files, data.test.pixels.files]
    assert not set(files[0]) & set(files[1])
    again = opened(folder_root / "train", test_share=0.25)
    assert [again.train.pixels.files, again.test.pixels.files] == files


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (33, 100)])
def test_evaluation_resizes_and_crops_as_torchvision(size, tmp_path, write_images):
    for half in ("train", "val"):
        write_images(tmp_path, half, {"a": 1, "b": 1}, size=size, suffix=".png")
    image = Image.open(tmp_path / "val" / "a" / "0000.png")
    from torchvision import transforms

    usual = transforms.Compose([transforms.Resize(20), transforms.CenterCrop(16), transforms.PILToTensor()])
    images, _ = imagenet_opened(tmp_path, classes=2, size=16, resize=20).test.fetch(np.array([0]), seed=0, epoch=0)
    assert torch.equal(usual(image), images[0])


def test_splits_are_no_classes(folder_root):
    """With `test_share`, the folders train and test were two classes, of which a network learned to tell the splits apart."""
    problem = refused(folder_root, test_share=0.2)
    assert "has the folders test, train, which are splits and not classes" in problem.message
    assert "leave out test_share" in problem.hint


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_a_broken_image_is_named(content, folder_root):
    data, path = opened(folder_root), folder_root / "train" / "cat" / "0003.jpg"
    path.write_bytes(path.read_bytes()[:-400] if content is None else content)
    with pytest.raises(RunFailed, match=f"{path} cannot be decoded"):
        data.train.fetch(np.arange(5), seed=0, epoch=0)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (700, 3), (3, 700), (40, 30), (500, 500)])
@pytest.mark.parametrize("least_area", [0.08, 1.0])
def test_a_random_box_lies_in_the_image_and_has_the_shape_allowed(width, height, least_area):
    for seed in range(30):
        left, top, right, bottom = random_box(width, height, least_area, np.random.default_rng(seed))
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        w, h = right - left, bottom - top
        assert 3 / 4 * (h - 1) - 1 <= w <= 4 / 3 * (h + 1) + 1  # whole pixels
