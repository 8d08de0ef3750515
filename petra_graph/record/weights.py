"""Weights as files: a run's own, written whole, and those of any program, read without running their code.

A run's parameters and running statistics are in safetensors, keyed by node: "layer1.0/first.0.weight". Keys name nodes, never
stages, so the same file loads under any partition. Others' files are safetensors, or `state_dict`s that torch.save has written;
tensors are read one at a time where the file allows it, so that comparing shapes reads no weights. Of the files that a run has written, its
summary has the SHA-256, which is compared whenever one is opened.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from petra_graph.errors import SpecError
from petra_graph.record.run_directory import SUMMARY, read_json, sha256_of, write_whole

SEPARATOR = "/"
WEIGHTS = "weights.safetensors"
"""The file in a run's directory."""
PRETRAINED, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The file in the folder of a pretrained network, or what says which shards of the folder hold it."""
DIGESTS = "sha256"
"""The key of the summary for digests, by file."""
_INSIDE = ("state_dict", "model_state_dict", "model")
"""Under which checkpoints of others hold their weights."""
_HINT = "give a safetensors file, or what torch.save(network.state_dict(), FILE) writes"
_BRACE_AT = 8
"""Bytes of the length of safetensors' header, which begins with a brace."""


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
    """An open file of tensors by name."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    """Returns the tensor of a name."""


@contextmanager
def open_weights(file: Path) -> Iterator[WeightFile]:
    """Open a file of weights, or the files of a folder; what a file is follows from its content.

    No code of a file is run: torch reads it with `weights_only`.

    Raises:
        SpecError: it cannot be read, holds something else than tensors by name, or is not what its run has written.
    """
    with ExitStack() as stack:
        try:
            owners: dict[str, Any] = {}
            shapes: dict[str, tuple[int, ...]] = {}
            for one in _files_of(file) if file.is_dir() else [file]:
                with one.open("rb") as opened:
                    begin = opened.read(_BRACE_AT + 1)
                if (one.parent / "resolved.toml").is_file():  # a run's directory; one that has not ended has no summary
                    digest = (read_json(one.parent / SUMMARY).get(DIGESTS) or {}).get(one.name)
                    if digest is not None and digest != sha256_of(one):
                        text = f"{one} is not what the run has written: its SHA-256 is another than in {SUMMARY}"
                        raise SpecError(text, "restore it from a copy")
                if begin[_BRACE_AT:] == b"{":
                    tensors = stack.enter_context(safe_open(one, framework="pt"))
                    found = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118  no mapping
                    owners |= dict.fromkeys(found, tensors.get_tensor)
                else:
                    state = _state_dict(one, pickled=begin[:1] == b"\x80" or zipfile.is_zipfile(one))
                    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
                    owners |= dict.fromkeys(found, state.__getitem__)
                shapes |= found
            yield WeightFile(shapes, lambda name: owners[name](name))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise SpecError(f"{one} cannot be read: {_reason(error)}", _HINT) from None


def _files_of(folder: Path) -> Sequence[Path]:
    for name in (WEIGHTS, PRETRAINED):
        if (folder / name).is_file():
            return [folder / name]
    listed = read_json(folder / INDEX).get("weight_map")
    names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    if not names:
        raise SpecError(f"{folder} has neither {WEIGHTS} nor {PRETRAINED} nor {INDEX} with its shards", _HINT)
    for name in names:
        if Path(name).name != name:  # a download shall not name other files
            raise SpecError(f"{folder / INDEX} lists {name!r}, which is no file of its folder", _HINT)
    return [folder / name for name in names]


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _state_dict(file: Path, *, pickled: bool) -> Mapping[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of protocols that torch may not read; where it cannot, it raises
        try:  # older files are not zip archives, and cannot be mapped into memory
            content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except Exception as error:  # noqa: BLE001  torch's reader raises whatever a damaged pickle leads it to
            reason = _reason(error)
            if isinstance(error, UnpicklingError):  # whose text advises to run the file's code
                reason = "it holds more than tensors, whose code is not run" if pickled else "it is no file of weights"
            raise SpecError(f"{file} cannot be read: {reason}", _HINT) from None
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise SpecError(f"{file} holds {type(content).__name__}, and no tensors by name", _HINT)
    others = [f"{name} ({type(value).__name__})" for name, value in content.items() if not isinstance(value, Tensor)]
    if others or not content:
        found = f"holds {', '.join(others[:3])} among its tensors" if others else "holds no tensor"
        raise SpecError(f"{file} {found}", _HINT)
    return {str(name): tensor for name, tensor in content.items()}
