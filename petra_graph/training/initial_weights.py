"""Weights that a run begins with, from a file, instead of random ones.

A file of a run has node names with the names of parameters and buffers, as in `weights.safetensors`, so the stages may be others.
A file of another program, such as a pretrained network's `state_dict`, knows no nodes: each of its tensors belongs to the one node
that has a tensor of that name. Tensors of a block's `begun_anew` may be missing. Names may have the prefixes of torch's own wrappers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen

from petra_graph.blocks import Block
from petra_graph.errors import Problem, SpecError, at_path
from petra_graph.measure.build_block import build_to_look_at
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.record.weights import SEPARATOR, WEIGHTS, copy_weights, is_named, open_weights
from petra_graph.spec.model import InitSpec
from petra_graph.units import listed, plural

_PATH = ("init", "weights")
_WRAPPER, _COMPILED = "module.", "_orig_mod."
"""What DataParallel, DistributedDataParallel and AveragedModel write before a name, and `torch.compile` before that of any module's tensor."""
_LISTED = 5


@frozen(kw_only=True)
class InitialWeights:
    """A file that has been compared with a network."""

    file: Path
    fitting: Mapping[str, str]
    """The file's name of each tensor, by the network's name."""
    said: str
    """A text for the user on what matches."""

    def load(self, modules: Iterable[tuple[str, Block]]) -> None:
        """Load the weights into nodes, by their names; SpecError: the file can no longer be read."""
        with at_path(*_PATH), open_weights(self.file) as opened:
            copy_weights(modules, lambda name: opened.read(self.fitting[name]) if name in self.fitting else None)


def initial_weights(init: InitSpec, network: MeasuredNetwork) -> InitialWeights:
    """Compare the file that `init.weights` names, or that of a run's directory, with a network, by names and shapes; SpecError: it does not fit."""
    assert init.weights is not None
    path = Path(init.weights).expanduser()
    file = path / WEIGHTS if (path / WEIGHTS).is_file() else path
    if not (file.is_file() or file.is_dir()):
        hint = "give a file, a run's directory, or a folder of safetensors"
        raise SpecError(Problem(message=f"there is no file {file}", hint=hint, path=_PATH))

    here: dict[str, tuple[int, ...]] = {}
    of: dict[str, str] = {}  # one name for all names of a tensor
    new = set[str]()  # what a file may lack
    for node, graph_node in network.graph.nodes.items():
        block = build_to_look_at(graph_node, network.shapes[node].inputs)
        state = block.state_dict(keep_vars=True)
        labels = {id(state[key]): shared.label for key, shared in network.shapes[node].shared.items()}
        for key, value in state.items():
            name = f"{node}{SEPARATOR}{key}"
            here[name], of[name] = tuple(value.shape), labels.setdefault(id(value), name)
            new |= {name} if is_named(block.begun_anew, key) else set()
    forms = defaultdict[str, list[str]](list)
    """What a tensor of several names may be called, by one of them."""
    for name, one in of.items():
        forms[one] += [name, _key(name)]
    with at_path(*_PATH), open_weights(file) as opened:
        names, known = {name: name for name in opened.shapes}, {*here, *map(_key, here)}
        for name in opened.shapes:
            plain = name.replace(_COMPILED, "").removeprefix(_WRAPPER)
            if name not in known and plain in known and plain not in names:
                names[plain] = names.pop(name)
        found = {
            name: next((form for form in (name, _key(name), *forms[of[name]]) if form in names), "") for name in here
        }
        owners = Counter(key for key, _ in {(_key(name), of[name]) for name in here})
        several = [key for key in names if owners[key] > 1 and key in found.values()]
        own = {name: form for name, form in found.items() if form and form not in several}
        left_out = [name for name in here if is_named(init.leave_out, name)]
        shapes = {name: opened.shapes[names[form]] for name, form in own.items() if name not in left_out}
    fitting = {name: names[own[name]] for name, shape in shapes.items() if shape == here[name]}
    begun, taken = {of[name] for name in new}, {*own.values(), *several}
    every = {
        "in several nodes of the network": several,
        "not in the file": [one for one in here if not (found[one] or of[one] in begun or one in left_out)],
        "of another shape": [
            f"{name} {list(shape)} in the file, {list(here[name])} here"
            for name, shape in shapes.items()
            if name not in fitting
        ],
        "not in the network": [one for one in names if one not in taken and not is_named(init.leave_out, one)],
    }
    faults = [f"{text}: {listed(some, _LISTED)}" for text, some in every.items() if some]
    if faults:
        hint = 'name tensors in init.leave_out, as in ["head"] for a node, to begin with random values there'
        raise SpecError(Problem(message=f"{file} does not fit: {'; '.join(faults)}", hint=hint, path=_PATH))
    said = [f"{len(fitting)} of {len(here)} tensors come from {file}"]
    if anew := new - fitting.keys():
        said.append(f"{plural(len(anew), 'tensor')} begin anew")
    if left_out:
        said.append(f"{listed(left_out, _LISTED)} left out")
    return InitialWeights(file=file, fitting=fitting, said="; ".join(said))


def _key(name: str) -> str:
    return name.partition(SEPARATOR)[2]
