"""Transforms of torchvision: by sample and by micro-batch alone, never of the test, and refused where they do not fit."""

from contextlib import closing

import numpy as np
import pytest
import torch
from attrs import evolve
from petra_graph_vision.folder_sets import ImageFolder

from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.training.data import Loaders
from petra_graph.training.prepare import prepare
from tests.support import kit

ALL = np.arange(12)
AUGMENT = ({"name": "RandAugment"}, {"name": "RandomErasing", "p": 0.9, "value": [9, 8, 7]})


@pytest.fixture
def opened(folder_root):
    def open_images(**options):
        return kit.opened(ImageFolder, root=str(folder_root), size=16, **options)

    return open_images


def test_an_image_is_transformed_behind_crop_and_flip_with_draws_of_its_own(opened):
    plain, erased = opened(), opened(augment=AUGMENT[1:])
    images, targets = plain.train.fetch(ALL, seed=3, epoch=1)
    found, same = erased.train.fetch(ALL, seed=3, epoch=1)
    assert torch.equal(targets, same)
    changed = (found != images).any(1, keepdim=True)
    values = torch.tensor([9, 8, 7], dtype=torch.uint8).reshape(1, 3, 1, 1)
    assert torch.equal(found, torch.where(changed, values, images))
    boxes = {tuple(map(tuple, one.nonzero().tolist())) for one in changed[:, 0] if one.any()}
    assert len(boxes) > len(ALL) // 2


def test_the_test_is_neither_transformed_nor_mixed(opened):
    plain, transformed = opened(), opened(augment=AUGMENT, mix=({"name": "CutMix"},))
    for one, other in zip(
        *(data.test.fetch(np.arange(5), seed=1, epoch=1) for data in (plain, transformed)), strict=True
    ):
        assert torch.equal(one, other)
    assert not hasattr(transformed.test, "mix")
    assert not hasattr(opened(augment=AUGMENT).train, "mix")


def test_mixup_is_torchvisions_on_whole_numbers(opened):
    train = opened(mix=({"name": "MixUp", "alpha": 0.4},)).train
    images, targets = train.fetch(ALL, seed=0, epoch=0)
    mixed, shares = train.mix(images, targets, ALL, seed=0, epoch=0)
    share = float(shares[targets != targets.roll(1)][0].max())
    expected = images.float() * share + images.roll(1, 0).float() * (1 - share)
    alike = [
        (mixed.float() - one).abs().max() < 0.51 for one in (expected, images.float() + images.roll(1, 0) - expected)
    ]
    assert (any(alike), mixed.dtype, shares.dtype) == (True, torch.uint8, torch.float32)
    assert torch.allclose(shares.sum(1), torch.ones(len(ALL)))


def test_a_mix_follows_from_seed_epoch_and_samples(opened):
    train = opened(mix=({"name": "MixUp"}, {"name": "CutMix"})).train
    images, targets = train.fetch(ALL, seed=0, epoch=0)
    cases = [(0, 0, ALL), (0, 0, ALL), (1, 0, ALL), (0, 1, ALL), (0, 0, ALL[::-1])]
    first, again, *others = [
        train.mix(images, targets, indices, seed=seed, epoch=epoch)[0] for seed, epoch, indices in cases
    ]
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in others)


WRONG = {
    "a name": ("augment", {"name": "RandAugmnt"}, '"RandAugmnt" is no transform .*RandAugment'),
    "no name": ("augment", {"num_ops": 2}, "is no transform"),
    "an option": ("augment", {"name": "RandomErasing", "prob": 1}, "RandomErasing: .*'prob'"),
    "a value": ("augment", {"name": "RandomErasing", "p": 7}, "RandomErasing: `p` should be a floating point value"),
    "one inside": ("augment", {"name": "RandomApply", "transforms": [{"name": "Invert"}]}, '"Invert" is no transform'),
    "mixing a single image": ("augment", {"name": "MixUp"}, '"MixUp" is no transform'),
    "not mixing": ("mix", {"name": "RandAugment"}, '"RandAugment" is no transform'),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tables_are_refused(case):
    key, table, message = WRONG[case]
    with pytest.raises(SpecError, match=message):
        kit.opened(ImageFolder, root="x", size=16, **{key: [table]})


SPEC = """
data = { name = "image-folder", batch = 4, options = { root = ".", size = 16, augment = [{ name = "RandAugment" }], mix = [{ name = "MixUp" }, { name = "CutMix" }] } }
[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 4 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 2 }
"""


def test_the_head_s_process_and_loader_processes_mix_as_one_process_does(here, folder_root, write):
    """Targets of mixed samples follow from the samples: the head's process reads both."""
    whole = prepare(write("a.toml", SPEC)).opened
    alone = list(whole.epoch(1))
    assert alone[0][1].shape == (4, 2)
    with closing(Loaders(1, [whole.train])) as loaders:
        for other in (evolve(whole, part="targets"), evolve(whole, loaders=loaders)):
            for one, again in zip(alone, other.epoch(1), strict=True):
                assert all(map(torch.equal, one, again))
    assert main(["run", "a.toml", "--set", "run.epochs=1"]) == 0
