"""A stream of samples as the training split: an epoch is `run.micro_batches`, which go on where the epoch before has ended.

    pass       | 0                        | 1                        | 2
    samples    | 0 1 2 ..          L0 - 1 | L0 L0+1 ..               |
    epochs     | 0             | 1             | 2             |        N = micro_batches * batch * replicas samples each

Decision: a pass begins when the one before has ended, within a micro-batch as well. Generators are seeded with (seed, pass, sample of the
pass) around each sample, so a sample depends on those before it only through what the stream itself keeps. Going on is cheap; going back,
and a process that begins in the middle as after a resume, reads the stream from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from petra_graph.blocks.randomness import random_key
from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import DataSet, Stream, is_stream
from petra_graph.plugins.generators import fork_generators, seed_generators
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.spec.model import Spec
from petra_graph.units import plural

_END = object()


class StreamSplit:
    """A split of `samples` samples an epoch, of whose passes each has at least a micro-batch."""

    in_order = True

    def __init__(self, stream: Stream, samples: int, micro_batch: int) -> None:
        """Begin with nothing read."""
        self.stream, self._samples, self._micro_batch = stream, samples, micro_batch
        self._source: Iterator[tuple[Tree, Tree]] | None = None
        """All passes, as this process reads them; None: it has not begun, or they have raised."""
        self._read_by, self._next = (0, 0), 0
        """The seed and the process that read, and the number of the next sample, counted in all passes."""

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what a loader process needs, which reads the stream on its own."""
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        return self._samples

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tree]:
        """Read samples of an epoch; raise RunFailed if the stream raised, is empty, or ended within a micro-batch."""
        with fork_generators():
            found = {
                index: self._read(epoch * self._samples + index, seed)
                for index in sorted({int(one) for one in indices})
            }
        samples, targets = tree_map(lambda *rows: torch.stack(rows), *(found[int(index)] for index in indices))
        return samples, targets

    def _read(self, number: int, seed: int) -> tuple[Tree, Tree]:
        reader = seed, os.getpid()  # a fork shares open files
        source, self._source = self._source, None  # what raised is not read on
        if source is None or number < self._next or reader != self._read_by:
            source, self._read_by, self._next = self._passes(seed), reader, 0
        while self._next <= number:
            sample = next(source)
            self._next += 1
        self._source = source
        return sample

    def _passes(self, seed: int) -> Iterator[tuple[Tree, Tree]]:
        """Yield the samples of all passes."""
        for number in count():
            begin, read = partial(self.stream.iterate, seed=seed, number=number), 0
            source = iter(_asked(begin, random_key(seed, number, "begins"), number, read))
            following = partial(next, source, _END)
            while (sample := _asked(following, random_key(seed, number, read), number, read)) is not _END:
                read += 1
                yield sample
            if read < self._micro_batch:
                has = f"the training stream has {plural(read, 'sample')} in pass {number}"
                hint = "lower data.batch, or see why the stream ends; it must begin anew whenever it is iterated"
                raise RunFailed(f"{has}, and a micro-batch has {self._micro_batch}", hint)


def _asked(action: Callable[[], Any], key: int, number: int, read: int) -> Any:
    """Run a stream's code with the generators seeded; what it raises names the pass and the sample."""
    with author_code(lambda: f"sample {read} of pass {number} of the training stream", error=RunFailed):
        seed_generators(key)
        return action()


def split_of_stream(data: DataSet, spec: Spec) -> StreamSplit | None:
    """Return the training split of a run whose data set has a stream; None: it has another one.

    Raises:
        SpecError: the specification does not say how long an epoch is, or has several loader processes.
    """
    stream: Any = data.train
    if not is_stream(stream):
        return None
    if spec.data.workers > 1:
        message = f"a stream of samples is read in its order, by one loader process at most (got {spec.data.workers})"
        hint = "set data.workers to 0 or 1; a stream may use processes of its own"
        raise SpecError(Problem(message=message, hint=hint, path=("data", "workers")))
    if spec.run.micro_batches is None:
        message = "the training samples are a stream of unknown length, and nothing says how long an epoch is"
        hint = "set run.micro_batches, the number of micro-batches of an epoch; the next epoch begins with the sample after its last one"
        raise SpecError(Problem(message=message, hint=hint, path=("run", "micro_batches")))
    micro_batch = spec.data.batch * spec.partition.replicas
    return StreamSplit(stream, spec.run.micro_batches * micro_batch, micro_batch)
