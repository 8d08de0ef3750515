"""Weights as files: a run's own, by node, as in "layer1.0/first.0.weight", whatever the stages; and those of any program, whose code is not run."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from petra_graph.errors import SpecError
from petra_graph.record.run_directory import SUMMARY, read_json, sha256_of, write_whole

SEPARATOR = "/"
WEIGHTS = "weights.safetensors"  # in a run's directory
PRETRAINED, INDEX = "model.safetensors", "model.safetensors.index.json"  # of others; the index lists shards
DIGESTS = "sha256"  # the key of the summary for digests, by file
_INSIDE = ("state_dict", "model_state_dict", "model")  # under which checkpoints of others hold their weights
_HINT = "give a safetensors file, or what torch.save(network.state_dict(), FILE) writes"


def weights_of(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Return all tensors of (node name, module) pairs, on the CPU, densely laid out, none in memory of another."""
    weights: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, module in modules:
        for key, tensor in module.state_dict().items():
            dense = tensor.detach().cpu().contiguous()
            memory = dense.untyped_storage().data_ptr()  # safetensors refuses tensors that share some
            weights[f"{name}{SEPARATOR}{key}"] = dense.clone() if memory in taken else dense
            taken.add(memory)
    return weights


def copy_weights(modules: Iterable[tuple[str, nn.Module]], read: Callable[[str], Tensor | None]) -> None:
    """Give (node name, module) pairs the tensors that `read` returns of their names; None leaves one as it is."""
    for node, module in modules:
        for key, own in module.state_dict().items():
            if (stored := read(f"{node}{SEPARATOR}{key}")) is not None:
                own.copy_(stored)


def save_weights(path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> None:
    """Write tensors and facts, the file whole or not at all; raise RunFailed if the disk refuses."""

    def save(temporary: Path) -> None:
        try:
            save_file(dict(weights), temporary, None if facts is None else dict(facts))
        except SafetensorError as error:  # a full disk, for one; it is not an OSError
            raise OSError(str(error)) from error

    write_whole(path, save)


def is_named(patterns: Iterable[str], name: str) -> bool:
    """Whether a pattern names a tensor "NODE/NAME": by its whole name, its node, or its name in the node."""
    forms = (name, *name.split(SEPARATOR, 1))
    return any(fnmatchcase(form, pattern) for form in forms for pattern in patterns)


@frozen
class WeightFile:
    """An open file of tensors by name, which `read` returns."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]


@contextmanager
def open_weights(file: Path) -> Iterator[WeightFile]:
    """Open a file of weights, or the files of a folder; what a file is follows from its content. SpecError: it holds none, or not its run's."""
    shapes, readers, digest = dict[str, tuple[int, ...]](), dict[str, Callable[[str], Tensor]](), None
    with ExitStack() as stack:
        try:
            for one in _files_of(file) if file.is_dir() else [file]:
                if one.with_name("resolved.toml").exists():  # a run's directory; one that has not ended has no summary
                    digest = read_json(one.with_name(SUMMARY)).get(DIGESTS, {}).get(one.name)
                if digest is not None and digest != sha256_of(one):
                    text = f"{one} is not what the run has written: its SHA-256 is another than in {SUMMARY}"
                    raise SpecError(text, "restore it from a copy")
                with one.open("rb") as opened:
                    is_safetensors = opened.read(9)[8:] == b"{"  # behind the length of the header
                if is_safetensors:
                    tensors = stack.enter_context(safe_open(one, framework="pt"))
                    names = list(tensors.keys())
                    shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
                    readers |= dict.fromkeys(names, tensors.get_tensor)
                else:
                    state = _state_dict(one)
                    shapes |= {name: tuple(tensor.shape) for name, tensor in state.items()}
                    readers |= dict.fromkeys(state, state.__getitem__)
            yield WeightFile(shapes, lambda name: readers[name](name))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise SpecError(f"{one} cannot be read: {str(error).partition(chr(10))[0]}", _HINT) from None


def _files_of(folder: Path) -> Sequence[Path]:
    if whole := [folder / name for name in (WEIGHTS, PRETRAINED) if (folder / name).is_file()]:
        return whole[:1]
    if not (listed := read_json(folder / INDEX).get("weight_map")):
        raise SpecError(f"{folder} has neither {WEIGHTS} nor {PRETRAINED} nor {INDEX} with its shards", _HINT)
    return [folder / name for name in sorted(set(listed.values()))]


def _state_dict(file: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file of torch's; no code of it is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of protocols that torch may not read; where it cannot, it raises
            # Older files are not zip archives, and cannot be mapped into memory.
            content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception:  # noqa: BLE001  whatever a damaged pickle leads torch to; its own text advises to run the file's code
        raise SpecError(f"{file} is damaged, or holds more than tensors, whose code is not run", _HINT) from None
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(one, Tensor) for one in content.values()):
        raise SpecError(f"{file} holds something else than tensors by name", _HINT)
    return {str(name): tensor for name, tensor in content.items()}
