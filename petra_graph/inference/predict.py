"""What a run's network says: classes with their probabilities, plain outputs, or a text continued.

Decision: each token of a text is computed from the whole window before it. Keeping what attention has computed would need a block's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.utils._pytree import tree_map

from petra_graph.errors import SpecError
from petra_graph.inference.samples import Samples
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import TextCodec
from petra_graph.plugins.tensor_trees import Tree, main, mapped
from petra_graph.training.trained_network import Network, computing_on

_MAP = 2
"""The dimensions of targets that are a class for each pixel."""


class ClassScore(NamedTuple):
    """One class for one sample; the score is a probability where the loss reads the outputs as logits, else the network's output."""

    number: int
    name: str | None
    score: float


@frozen(kw_only=True)
class Prediction:
    """The prediction for one sample; where a sample has a target at each of several positions, for one position of it."""

    file: str
    index: int
    """Of the sample in its file."""
    position: tuple[int, ...] = ()
    """In the sample's targets, such as a token's in a text; () where a sample has one target."""
    best: tuple[ClassScore, ...] = ()
    """The classes with the largest scores, the largest first; () where targets are not classes. Of an image: shares of its pixels."""
    probable: bool = False
    """Scores are probabilities, or shares."""
    output: tuple[float, ...] = ()
    """What the network returns, flattened; () for an image of classes."""
    note: str = ""
    """What was done to the file's samples."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON, without what it has not."""
        classes = [
            {"class": number, **({"name": name} if name else {}), "score": score} for number, name, score in self.best
        ]
        said = {"classes": classes} if classes else {"output": list(self.output)}
        more = {"position": list(self.position), **said, "note": self.note}
        return {"file": self.file, "index": self.index, **{key: value for key, value in more.items() if value}}


def predict_samples(
    run: SavedRun, network: Network, samples: Sequence[Samples], *, top: int = 3, device: str = "cpu"
) -> list[Prediction]:
    """Predict samples, with the `top` classes of each; where a sample has a class at each of several positions, each is a prediction.

    Of a class for each pixel, a prediction has the classes' shares of the pixels.
    """
    facts, found, size = run.facts, list[Prediction](), run.spec.data.test_batch
    places = ((file, index) for file in samples for index in range(len(main(file.values))))
    values: Tree = tree_map(lambda *parts: torch.cat(parts), *(one.values for one in samples))

    def best_of(scores: Tensor) -> tuple[ClassScore, ...]:
        best, names = scores.topk(min(top, len(scores))), facts.class_names
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(ClassScore(at, names[at] if names else None, value) for at, value in pairs)

    with computing_on(network, device):
        for start in range(0, len(main(values)), size):
            part = mapped(lambda one: one[start : start + size].to(device), values)  # noqa: B023  it is called at once
            outputs = main(network(part)).cpu()
            scored = outputs.float().softmax(dim=1) if run.gives_logits else outputs
            for output, scores, (file, index) in zip(outputs, scored, places, strict=False):
                about = Prediction(file=file.name, index=index, note=file.note, probable=run.gives_logits)
                if not run.gives_classes:
                    found.append(evolve(about, output=tuple(output.flatten().tolist())))
                elif len(facts.target_shape) == _MAP:
                    classes = scores.argmax(dim=0).flatten()
                    shares = classes.bincount(minlength=len(scores)) / len(classes)
                    found.append(evolve(about, best=tuple(one for one in best_of(shares) if one.score), probable=True))
                else:
                    for position in np.ndindex(*facts.target_shape):  # one, (), where a sample has one target
                        at = (slice(None), *position)
                        whole = tuple(output[at].tolist())
                        found.append(evolve(about, position=position, best=best_of(scores[at]), output=whole))
    return found


# --- texts ---


def continued_text(
    run: SavedRun, network: Network, *, prompt: str = "\n", tokens: int = 200, device: str = "cpu", **drawing: Any
) -> str:
    """Return the prompt and the text that follows it. The same options and seed give the same text on the same device.

    Args:
        network: of the run, in evaluation mode.
        drawing: `temperature`, `top_k` and `seed`, as of `draw_tokens`.

    Raises:
        SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
    """
    data, facts = run.network.checked.data, run.facts
    if not hasattr(data.code, "codec"):
        message = f"{data} is not text: it does not say how a text becomes tokens"
        raise SpecError(message, "use a run of a network that was trained on text")
    codec: TextCodec = data.ask("codec", facts)
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets {list(facts.target_shape)}"
        message = f"the run's network does not continue a text: its samples are {came}"
        raise SpecError(message, "use a run that was trained on windows of tokens, with the next token as the target")
    with author_code(f"{data.owned} cannot encode the prompt"):
        given = list(codec.encode(prompt))

    def logits_of(window: Tensor) -> Tensor:
        return main(network(window.to(device)))

    with computing_on(network, device):
        drawn = draw_tokens(logits_of, given, tokens, context=facts.shape[0], **drawing)
    with author_code(f"{data.owned} cannot decode tokens"):
        return codec.decode(drawn)


def draw_tokens(
    network: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    tokens: int,
    *,
    context: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Return the prompt's tokens, at least one, and as many more; the draws move no global generator.

    Args:
        network: tokens, int64 [1, t], to logits [1, classes, t].
        context: the largest t.
        temperature: divides the logits; 0: always the likeliest token.
        top_k: draw from this many of the likeliest tokens; None: from all.
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
