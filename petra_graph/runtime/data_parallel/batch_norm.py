"""Batch normalisation with the statistics of all replicas' rows.

torch's SyncBatchNorm has kernels for CUDA alone; this one uses operations that every device has. All replicas hold
equally many rows, so the statistics of all rows follow from every replica's own mean and variance:

    forward     mean = E[mean_r]    var = E[var_r + (mean_r - mean)^2]        one exchange of 2 numbers a channel
    backward    dx = weight / std * (dy - E[dy] - xhat E[dy xhat])            another one

E is the mean over replicas and rows (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167; batches split over devices: Peng et al.
2018, https://arxiv.org/abs/1711.07240). Each process sums the gathered statistics in the order of replicas, so all get the same bits.

A recomputed forward exchanges again: it normalises with the statistics of its own micro-batch. An evaluation exchanges
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from petra_graph.blocks import Block

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Exchange(Protocol):
    """Gathers values of one stage from all replicas."""

    @property
    def size(self) -> int: ...

    def __call__(self, own: Tensor) -> Tensor:
        """Publish [n] values; return those of all replicas, [replicas, n], in their order."""
        ...


class SynchronisedBatchNorm(_BatchNorm):
    """Takes the place of a batch normalisation, with its parameters and running statistics."""

    def __init__(self, norm: _BatchNorm, exchange: Exchange) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, affine=False, track_running_stats=False)
        self.affine, self.track_running_stats = norm.affine, norm.track_running_stats
        self.training = norm.training
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self._exchange = exchange

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name of the method that it overrides
        """Normalise [n, channels, ...] with the statistics of all replicas' rows."""
        if not self.training:
            return super().forward(input)
        output, mean, var = _Normalise.apply(input, self.weight, self.bias, (self.eps, self._exchange))
        if self.track_running_stats and self.running_mean is not None:
            self._follow(mean, var, input.numel() // input.shape[1])
        return output  # type: ignore[no-any-return]

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, rows: int) -> None:
        """Update the running statistics as torch does: with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        count = rows * self._exchange.size
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), share)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        """Accept any number of dimensions."""


def synchronise(modules: Iterable[Block], exchange: Exchange) -> None:
    """Replace torch's batch normalisations by synchronised ones; parameters and names stay.

    A subclass with a forward of its own stays as it is.
    """
    replaced: dict[nn.Module, SynchronisedBatchNorm] = {}
    for module in modules:
        for path, part in list(module.named_modules(remove_duplicate=False)):
            if isinstance(part, _BatchNorm) and type(part) in _KINDS:
                parent, _, name = path.rpartition(".")
                if part not in replaced:
                    replaced[part] = SynchronisedBatchNorm(part, exchange)
                setattr(module.get_submodule(parent), name, replaced[part])


class _Normalise(Function):
    """Return the normalised input, the mean and the biased variance, [channels] each."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, how: tuple[float, Exchange]
    ) -> tuple[Tensor, Tensor, Tensor]:
        eps, exchange = how
        dtype = torch.promote_types(x.dtype, torch.float32)
        own = torch.cat(torch.var_mean(x.to(dtype), dim=_rows(x), correction=0))
        variances, means = exchange(own).chunk(2, dim=1)
        mean = means.mean(0)
        var = (variances + (means - mean).square()).mean(0)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.exchange = exchange
        ctx.mark_non_differentiable(mean, var)
        scale, shift = (None if value is None else value.to(dtype) for value in (weight, bias))
        output = functional.batch_norm(x.to(dtype), mean, var, scale, shift, training=False, eps=eps)
        return output.to(x.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        rows, shape = _rows(x), (1, -1, *[1] * (x.dim() - 2))
        dy = gradient.to(mean.dtype)
        normal = x.to(mean.dtype).sub(mean.view(shape)).mul_(inverse.view(shape))
        sums = torch.stack([dy.sum(rows), (dy * normal).sum(rows)])
        all_sums = ctx.exchange(sums.flatten())
        count = x.numel() // x.shape[1] * ctx.exchange.size
        of_dy, of_product = all_sums.sum(0).view(2, -1).div_(count)
        scale = inverse if weight is None else inverse * weight
        dx = normal.mul_(-of_product.view(shape)).add_(dy).sub_(of_dy.view(shape)).mul_(scale.view(shape))
        learned = (
            value.to(x.dtype if weight is None else weight.dtype) if needed else None
            for value, needed in zip((sums[1], sums[0]), ctx.needs_input_grad[1:3], strict=True)
        )
        return dx.to(x.dtype), *learned, None


def _rows(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]
