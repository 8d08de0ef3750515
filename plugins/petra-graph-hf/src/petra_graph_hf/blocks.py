"""Pieces of transformers' decoders as nodes.

    n window, t token, w feature of the stream, c token of the vocabulary

The modules are transformers' own. Attention is always torch's `scaled_dot_product_attention`, causal without a mask in memory, and
each layer makes its own rotary positions: cos and sin of [t, head_dim], which take no part in messages between stages.

Decision: the head returns logits [n, c, t], in the order of dimensions that torch's cross-entropy reads, a view of what the model's
own head computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from petra_graph.blocks import Buffered, Head, Shape, Streams
from petra_graph_hf.configuration import FAMILIES
from petra_graph_hf.declared import PieceOptions
from petra_graph_hf.names import EMBEDDING_WEIGHT

_ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose wavelengths do not depend on the window."""
_FULL, _SLIDING = "full_attention", "sliding_attention"


@lru_cache(maxsize=4)
def model_of(config: str) -> PreTrainedModel:
    """Return the model of a configuration on the meta device, with one layer: its classes, and how they draw first values.

    Raises:
        ValueError: transformers refuses the configuration, or its layers are of a kind that is not known here.
    """
    values = json.loads(config)
    family = values.pop("model_type", None)
    if family not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)} (got {family!r})")
    try:
        made = AutoConfig.for_model(family, **values)
        of_one = {key: value for key, value in values.items() if key != "layer_types"}
        one = AutoConfig.for_model(family, **{**of_one, "num_hidden_layers": 1})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(one, attn_implementation="sdpa")
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"transformers refuses the configuration: {reason}") from error
    made._attn_implementation = "sdpa"  # noqa: SLF001  its property has no other name
    model.config = made
    rotary = (made.rope_parameters or {}).get("rope_type", "default")
    if rotary not in _ROTARY:
        raise ValueError(f"rope_type must be one of {', '.join(_ROTARY)} (got {rotary!r})")
    kinds = set(getattr(made, "layer_types", None) or [_FULL])
    if unknown := kinds - {_FULL, _SLIDING}:
        raise ValueError(f"layer_types must be {_FULL} or {_SLIDING} (got {', '.join(sorted(unknown))})")
    return model


class _Piece(nn.Module):
    def _tied(self, model: PreTrainedModel, name: str) -> Mapping[str, str]:
        """Return what the embedding and the head of a model share, if it ties them: one name in both, by the name in this block."""
        return {name: EMBEDDING_WEIGHT} if model.config.tie_word_embeddings else {}

    def _drawn(self, model: PreTrainedModel) -> None:
        """Give the parameters the first values that transformers draws, with torch's random numbers of now."""
        if torch.get_default_device().type != "meta":
            self.apply(model._init_weights)  # noqa: SLF001  the only function that draws for a part of a model


class Embedding(_Piece, Buffered):
    """Tokens, int64 [n, t], to the stream [n, t, w]. Windows of any length are taken."""

    Options = PieceOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: PieceOptions) -> None:
        super().__init__(inputs, options)
        model = model_of(options.config)
        config: Any = model.config
        if len(inputs[0]) != 1:
            raise ValueError(f"hf-embedding reads samples of shape [tokens] (got {list(inputs[0])})")
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.shared_parameters = self._tied(model, "embed_tokens.weight")
        self._drawn(model)

    def forward(self, tokens_nt: Tensor) -> Streams:  # type: ignore[override]
        """Return the vectors of the tokens."""
        return (self.embed_tokens(tokens_nt),)


class Layer(_Piece, Buffered):
    """The stream [n, t, w] to itself, with a decoder layer's attention and MLP added."""

    Options = PieceOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: PieceOptions) -> None:
        super().__init__(inputs, options)
        model: Any = model_of(options.config)
        config, body = model.config, model.model
        _expect_stream(inputs, config.hidden_size)
        window = getattr(config, "sliding_window", None)
        if window is not None and inputs[0][0] > window:
            raise ValueError(
                f"sliding_window = {window} is shorter than the context of {inputs[0][0]} tokens, which takes another mask; "
                f"set data.options.context to {window} or less"
            )
        self.layer = type(body.layers[0])(config, 0)
        self.rotary = type(body.rotary_emb)(config=config)
        self._drawn(model)

    def forward(self, x_ntw: Tensor) -> Streams:  # type: ignore[override]
        """Return the stream after the layer."""
        positions = torch.arange(x_ntw.shape[1], device=x_ntw.device).unsqueeze(0)
        turned = self.rotary(x_ntw, position_ids=positions)
        return (self.layer(x_ntw, attention_mask=None, position_ids=positions, position_embeddings=turned),)


class Logits(_Piece, Head):
    """The stream [n, t, w] to logits [n, c, t]."""

    Options = PieceOptions
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: PieceOptions) -> None:
        super().__init__(inputs, options)
        model: Any = model_of(options.config)
        config = model.config
        _expect_stream(inputs, config.hidden_size)
        self.norm = type(model.model.norm)(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.shared_parameters = self._tied(model, "lm_head.weight")
        self._drawn(model)

    def forward(self, x_ntw: Tensor) -> Streams:  # type: ignore[override]
        """Return the logits of the token after each position."""
        return (self.lm_head(self.norm(x_ntw)).transpose(1, 2),)


def _expect_stream(inputs: Sequence[Shape], width: int) -> None:
    if len(inputs[0]) != 2 or inputs[0][1] != width:  # noqa: PLR2004  tokens, features
        raise ValueError(f"it reads a stream [tokens, {width}], as hidden_size says (got {list(inputs[0])})")
