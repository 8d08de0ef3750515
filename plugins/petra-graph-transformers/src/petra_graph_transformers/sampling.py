"""Text drawn from a network, token by token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from petra_graph.plugins import DataFacts
from petra_graph_transformers.codec import codec_of
from petra_graph_transformers.declared import SamplingOptions


def sampled_text(network: Callable[[Tensor], Tensor], facts: DataFacts, options: SamplingOptions) -> str:
    """Return the prompt and the text that follows it.

    Args:
        network: tokens, int64 [1, t], to logits [1, c, t]; in evaluation mode.
        facts: of the text that it was trained on.
        options: prompt, length, temperature, top-k and seed.

    Raises:
        SpecError: the network was not trained on text, or does not know a character of the prompt.
    """
    codec = codec_of(facts)
    prompt = codec.encode(options.prompt)
    return codec.decode(sample(network, prompt, facts.shape[0], options))


@torch.no_grad()
def sample(network: Callable[[Tensor], Tensor], prompt: Tensor, context: int, options: SamplingOptions) -> Tensor:
    """Return the prompt, int64 [t], with `options.tokens` more; the draws move no global generator."""
    generator = torch.Generator().manual_seed(options.seed)
    tokens = prompt
    for _ in range(options.tokens):
        logits = network(tokens[-context:].unsqueeze(0))[0, :, -1]
        tokens = torch.cat((tokens, _drawn(logits.double().cpu(), options, generator)))
    return tokens


def _drawn(logits: Tensor, options: SamplingOptions, generator: torch.Generator) -> Tensor:
    """Draw one token, int64 [1], from logits [c]."""
    if not options.temperature:
        return logits.argmax(keepdim=True)
    if options.top_k is not None and options.top_k < len(logits):
        least = logits.topk(options.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial((logits / options.temperature).softmax(dim=0), 1, generator=generator)
