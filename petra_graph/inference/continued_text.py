"""A text continued by a network of next tokens, drawn token by token.

Decision: each token is computed from the whole window before it. Keeping what attention has computed would need a block's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.plugins import AtLeast, Length
from petra_graph.spec.keys import key
from petra_graph.spec.strict_values import structure_as

if TYPE_CHECKING:
    from torch import Tensor

    from petra_graph.inference.saved_run import SavedRun
    from petra_graph.inference.trained_network import Network


@frozen(kw_only=True)
class SamplingOptions:
    """What is drawn, and how: the options of `petra-graph predict --prompt` and of `petra_graph.sample`."""

    prompt: str = key("\n", "text to continue", validator=Length(at_least=1))
    tokens: int = key(200, "length of the continuation", unit="tokens", validator=AtLeast(1))
    temperature: float = key(0.8, "divides the logits; 0: always the likeliest token", validator=AtLeast(0))
    top_k: int | None = key(None, "draw from this many of the likeliest tokens; default: all", validator=AtLeast(1))
    seed: int = key(0, "seed of the draws", validator=AtLeast(0))


def read_sampling_options(given: Mapping[str, Any]) -> SamplingOptions:
    """Return options by their names; those that are None have their defaults.

    Raises:
        SpecError: some are out of range, or unknown; all of them.
    """
    values = {name: value for name, value in given.items() if value is not None}
    options, problems = structure_as(SamplingOptions, values, (), names={(): "the options of sampling"})
    if options is None:
        raise SpecError(problems)
    return options


def continued_text(run: SavedRun, network: Network, options: SamplingOptions, device: str = "cpu") -> str:
    """Return the prompt and the text that follows it. The same options and seed give the same text on the same device.

    Args:
        network: of the run, in evaluation mode.

    Raises:
        SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
        RunFailed: the network cannot be run.
    """
    from petra_graph.inference.evaluate import computing_on
    from petra_graph.plugins.author_code import author_code
    from petra_graph.plugins.data_set import codec_of
    from petra_graph.plugins.tensor_trees import main

    data, facts = run.network.checked.data, run.facts
    codec = codec_of(data.plugin, data.options, facts)
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets {list(facts.target_shape)}"
        raise SpecError(
            f"the run's network does not continue a text: its samples are {came}",
            "use a run that was trained on windows of tokens, with the next token as the target of each",
        )
    with author_code(f"{data.plugin.owned} cannot encode the prompt"):
        prompt = list(codec.encode(options.prompt))
    with computing_on(network, device):
        tokens = draw_tokens(lambda window: main(network(window.to(device))), prompt, facts.shape[0], options)
    with author_code(f"{data.plugin.owned} cannot decode tokens"):
        return codec.decode(tokens)


def draw_tokens(
    network: Callable[[Tensor], Tensor], prompt: Sequence[int], context: int, options: SamplingOptions
) -> list[int]:
    """Return the prompt's tokens and `options.tokens` more; the draws move no global generator.

    Args:
        network: tokens, int64 [1, t], to logits [1, classes, t].
        context: the largest t.
    """
    import torch

    generator = torch.Generator().manual_seed(options.seed)
    tokens = list(prompt)
    for _ in range(options.tokens):
        logits = network(torch.tensor([tokens[-context:]]))[0, :, -1].double().cpu()
        if options.top_k is not None and options.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(options.top_k).values[-1], float("-inf"))
        if options.temperature:
            shares = (logits / options.temperature).softmax(dim=0)
            tokens.append(int(shares.multinomial(1, generator=generator)))
        else:
            tokens.append(int(logits.argmax()))
    return tokens
