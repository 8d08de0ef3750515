"""What a network is asked about, and what it says: classes with their probabilities, plain outputs, or a text continued.

Files or arrays become samples of the shape and type that the facts of the data set say, or are refused:

.png .jpg ...   decoded to the network's channels; resized by the shorter side, and cropped at the centre
.npy            one sample [*shape], or several [n, *shape], in the data set's own type
others          where the data set has `read`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.image_files import SUFFIXES, decode, resize_and_crop
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.loss_and_metric import reads_logits
from petra_graph.plugins.tensor_trees import main
from petra_graph.training.trained_network import Network, as_stored

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # PIL's, by channels
_IMAGE = 3  # dimensions of one image


def read_file(file: str, data: Plugin, facts: DataFacts) -> Tensor:
    """Return a file's samples [n, *shape]: an image, arrays, or what the data set reads; SpecError: it has none."""
    path = Path(file).expanduser()
    try:
        path.stat()  # a mistyped name is no fault of the data set's `read`
        if path.suffix.lower() == ".npy":
            return as_samples(np.load(path, allow_pickle=False), file, facts)
        if hasattr(data.code, "read"):
            return as_samples(data.ask("read", path), file, facts)
        # Floats are images where the data set itself makes them of images, from 0 to 1.
        images = not facts.several_inputs and len(facts.shape) == _IMAGE and facts.shape[0] in _MODES
        floats = images and facts.dtype == "float32" and data.ask("of_images")
        if path.suffix.lower() not in SUFFIXES or not images or not (facts.dtype == "uint8" or floats):
            hint = f"the network reads {facts.dtype} {facts.shape}: give arrays (.npy), made as the data set makes them"
            raise SpecError(f"{file} is no sample of {data}, whose class may have a static method `read`", hint)
        channels, height, width = facts.shape
        picture = decode(path, _MODES[channels])
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}") from None
    if picture.size != (width, height):
        scale = max(height / picture.height, width / picture.width)
        resized = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        picture = resize_and_crop(picture, resized, (width, height))
    pixels = torch.from_numpy(np.array(picture)).view(1, height, width, channels).permute(0, 3, 1, 2)
    return pixels.contiguous().float() / 255 if floats else pixels


def as_samples(values: Any, name: str, facts: DataFacts) -> Tensor:
    """Return an array or a tensor of one sample or several as samples [n, *shape]; SpecError, which names them: the network does not read them."""
    if facts.several_inputs:
        raise SpecError("the network reads several inputs", "call petra_graph.load(RUN) with a dictionary of them")
    try:
        tensor = as_stored(torch.as_tensor(values).detach().cpu(), facts.dtype)
    except TypeError as error:
        raise SpecError(f"{name}: {error}") from None
    if tuple(tensor.shape) == facts.shape:
        return tensor.unsqueeze(0)
    if tuple(tensor.shape[1:]) != facts.shape or not len(tensor):
        hint = "give one sample, or several with their number before the shape"
        raise SpecError(f"{name} has {list(tensor.shape)}, and the network reads {list(facts.shape)}", hint)
    return tensor


class ClassScore(NamedTuple):
    """One class for one sample; the score is a probability where the loss reads the outputs as logits, else the network's output."""

    number: int
    name: str | None
    score: float


@frozen(kw_only=True)
class Prediction:
    """The prediction for one sample."""

    file: str
    index: int  # of the sample in its file
    best: tuple[ClassScore, ...] = ()  # the largest score first; () where a sample's target is not one class
    probable: bool = False  # whether scores are probabilities
    output: tuple[float, ...] = ()  # what the network returns, flattened

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        classes = [{"class": at, **({"name": name} if name else {}), "score": score} for at, name, score in self.best]
        said = {"classes": classes} if classes else {"output": list(self.output)}
        return {"file": self.file, "index": self.index, **said}


def predict_samples(
    run: SavedRun, network: Network, files: Sequence[tuple[str, Tensor]], *, top: int = 3, device: str = "cpu"
) -> list[Prediction]:
    """Predict samples, by the names of their files, with the `top` classes of each."""
    found, size, facts, names = list[Prediction](), run.spec.data.test_batch, run.facts, run.facts.class_names
    # Logits have a softmax, which is a probability; an output [n, classes] is of one class a sample.
    probable = facts.classes is not None and reads_logits(run.network.checked.loss)
    shape = run.network.shapes[run.network.graph.head].outputs[0]
    top = min(top, shape[0]) if facts.classes is not None and not facts.target_shape and len(shape) == 1 else 0
    places = [(name, index) for name, values in files for index in range(len(values))]
    whole = torch.cat([values for _, values in files])
    for start in range(0, len(whole), size):
        with torch.no_grad():
            outputs = main(network(whole[start : start + size].to(device))).cpu()
        scored = outputs.float().softmax(dim=1) if probable else outputs
        for output, scores, (file, index) in zip(outputs, scored, places[start : start + size], strict=True):
            best = list[ClassScore]()
            if top:
                values, classes = scores.topk(top)
                pairs = zip(classes.tolist(), values.tolist(), strict=True)
                best = [ClassScore(at, names[at] if names else None, value) for at, value in pairs]
            flat = tuple(output.flatten().tolist())
            found.append(Prediction(file=file, index=index, best=tuple(best), probable=probable, output=flat))
    return found


def continued_text(
    run: SavedRun, network: Network, *, prompt: str = "\n", tokens: int = 200, device: str = "cpu", **drawing: Any
) -> str:
    """Return the prompt and the text that follows it; the same `drawing`, as of `draw_tokens`, gives the same text on the same device.

    Raises SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
    """
    data, facts = run.network.checked.data, run.facts
    if not hasattr(data.code, "codec") or not facts.of_tokens:
        message = f"{data} does not say how a text becomes tokens, or has no target for each of them"
        raise SpecError(message, "use a run that was trained on windows of tokens, with the next token as the target")
    codec = data.ask("codec", facts)
    with author_code(f"{data.owned} cannot encode the prompt"):
        given = list(codec.encode(prompt))
    drawn = draw_tokens(lambda window: main(network(window.to(device))), given, tokens, facts.shape[0], **drawing)
    with author_code(f"{data.owned} cannot decode tokens"):
        return str(codec.decode(drawn))


@torch.no_grad()
def draw_tokens(
    network: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    tokens: int,
    context: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Return the prompt's tokens, at least one, and as many more; the draws move no global generator.

    The network gives the logits [1, classes, t] of at most `context` tokens [1, t]. Each token is computed from the whole window before it: to
    keep what attention has computed would need a block's own code. `temperature` divides the logits; at 0 the likeliest token is taken.
    """
    generator = torch.Generator().manual_seed(seed)
    found = list(prompt)
    for _ in range(tokens):
        logits = network(torch.tensor([found[-context:]]))[0, :, -1].double().cpu()
        if top_k is not None and top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
        if temperature:
            shares = (logits / temperature).softmax(dim=0)
            found.append(int(shares.multinomial(1, generator=generator)))
        else:
            found.append(int(logits.argmax()))
    return found
