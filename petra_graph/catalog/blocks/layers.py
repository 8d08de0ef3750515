"""Layers that several blocks are made of; every convolution has a bias, as in the paper's networks."""

from __future__ import annotations

from torch import nn


def conv_norm(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution, padded to keep the size at stride 1, and its batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2), nn.BatchNorm2d(outputs)
    )


def conv_norm_relu(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution, its batch normalisation and ReLU."""
    return conv_norm(inputs, outputs, kernel=kernel, stride=stride).append(nn.ReLU(inplace=True))
