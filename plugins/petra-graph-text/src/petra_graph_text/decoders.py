"""Pretrained decoders of Hugging Face transformers: the embedding, each layer, and the last norm with the head, a node each.

    n window, t token, w feature of the stream, c token of the vocabulary

The modules are transformers' own, under their own names in each node: "model.layers.3/model.layers.3.mlp.up_proj.weight". So a model's
files fit as they are, and the tensors of all nodes are a `state_dict` of the model. Attention is always torch's
`scaled_dot_product_attention`, causal without a mask in memory, and each layer makes its own rotary positions: cos and sin of [t, head_dim],
which take no part in messages between stages.

Nothing in a folder is executed: `auto_map`, which names code of the folder, is not read, and only the families of `FAMILIES` are built.

Decision: the head returns logits [n, c, t], in the order of dimensions that torch's cross-entropy reads, a view of what the model's
own head computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from attrs import asdict
from torch import Tensor, nn

from petra_graph.blocks import Block, Buffered, DualResidualEntry, DualResidualStep, Head, Shape, Streams
from petra_graph.blocks.dual_residual import COEFFICIENTS, Alpha, Beta
from petra_graph.catalog.networks import Anchors, Coupling, holder_of, link_of_chain
from petra_graph.plugins import AtLeast, DataFacts, Kind, Length, NodeSpec, Problem, SpecError
from petra_graph.record.weights import SEPARATOR, is_named
from petra_graph_text.lora import LoraOptions, add_adapters
from petra_graph_text.transformer import expect_tokens

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` whose decoders have the modules and arguments of Llama's."""
CONFIG = "config.json"
EMBEDDING, LAYERS, HEAD = "model.embed_tokens", "model.layers", "lm_head"
"""Nodes, by their module in transformers."""
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""What every configuration must say: transformers' own defaults are those of a model of seven billion parameters."""
_LINEAR = (*(f"self_attn.{one}_proj" for one in "qkvo"), *(f"mlp.{one}_proj" for one in ("gate", "up", "down")))
"""Linear layers of a decoder layer."""
_NOT_KEPT = ("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache")
_ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose wavelengths do not depend on the window."""
_LAYER_TYPES = {"full_attention", "sliding_attention"}


Lora = Annotated[LoraOptions | None, "low-rank adapters, which alone are trained; default: none"]
Config = Annotated[str, "transformers' configuration of the whole model, as JSON", Length(at_least=2)]


def decoder(
    facts: DataFacts,
    *,
    model: Annotated[Path | None, "folder with config.json, usually that of `init.weights`"] = None,
    config: Annotated[Mapping[str, Any], "values of transformers' configuration, over those of the model"] = {},
    lora: Lora = None,
    coupling: Coupling = None,
    anchors: Anchors = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.1,
) -> tuple[NodeSpec, ...]:
    """A decoder of the Llama family, from a folder with config.json: a node for each layer."""
    expect_tokens("hf-decoder", facts)
    if model is None and not config:
        raise ValueError('give model = "FOLDER", or config')
    read = {"model_type": "llama"} if model is None else _read_config(model)
    values = {**read, **config}
    if problems := [Problem(message=f"{model or 'config'} {one}", path=("model",)) for one in _faults(values, facts)]:
        raise SpecError(problems)
    shared: dict[str, Any] = {"config": json.dumps(values, sort_keys=True)}
    if lora is not None:
        _expect_layers(lora, values["num_hidden_layers"])
        shared["lora"] = asdict(lora)
    layers = []
    for number in range(values["num_hidden_layers"]):
        block: str = "layer"
        kind: Kind | None = None
        own: dict[str, Any] = {}
        if coupling is not None:
            block, kind, own = link_of_chain(number, anchors, alpha, beta)
        options = shared | {"number": number} | own
        layers.append(NodeSpec(name=f"{LAYERS}.{number}", block=f"hf-{block}", kind=kind, options=options))
    return (
        NodeSpec(name=EMBEDDING, block="hf-embedding", options=shared),
        *layers,
        NodeSpec(name=HEAD, block="hf-logits", options=shared),
    )


def _expect_layers(lora: LoraOptions, count: int) -> None:
    """Refuse patterns of which none names a linear layer."""
    layers = [f"{LAYERS}.{number}" for number in range(count)]
    known = [f"{layer}{SEPARATOR}{layer}.{one}" for layer in layers for one in _LINEAR] + [f"{HEAD}{SEPARATOR}{HEAD}"]
    for pattern in lora.on:
        if not any(is_named([pattern], name) for name in known):
            hint = f"name some of {', '.join(f'*{one}' for one in _LINEAR)}, or nodes: {LAYERS}.*, {HEAD}"
            raise SpecError(f"{pattern!r} names no linear layer of the model", hint, ("lora", "on"))


def _read_config(model: Path) -> Mapping[str, Any]:
    file = model.expanduser() / CONFIG
    try:
        values = dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "give a folder that transformers' save_pretrained has written"
        raise SpecError(f"{file} cannot be read: {reason}", hint, ("model",)) from None
    return {key: value for key, value in values.items() if key not in _NOT_KEPT}


def _faults(values: Mapping[str, Any], facts: DataFacts) -> Sequence[str]:
    """Return what is wrong with a configuration, for such windows of tokens."""
    family, vocabulary, longest = (values.get(key) for key in ("model_type", "vocab_size", "max_position_embeddings"))
    found = []
    if family not in FAMILIES:
        found.append(f"has model_type = {json.dumps(family)}; known families: {', '.join(FAMILIES)}")
    found += [
        f"has {key} = {json.dumps(values.get(key), default=str)}, not a positive integer"
        for key in _SIZES
        if type(values.get(key)) is not int or values[key] < 1
    ]
    if values.get("quantization_config"):
        found.append("is of quantised weights (quantization_config), and float32, float16 or bfloat16 are read")
    if facts.classes is not None and facts.classes != vocabulary:
        found.append(
            f"has vocab_size = {vocabulary}, and the data set {facts.classes} tokens; of the model's own tokenizer, whose last vectors "
            f"belong to no token, set data.options.vocabulary = {vocabulary}"
        )
    if isinstance(longest, int) and facts.shape[0] > longest:
        found.append(f"has max_position_embeddings = {longest}, and windows have {facts.shape[0]} tokens")
    return found


@lru_cache(maxsize=4)
def model_of(config: str) -> Any:
    """Return the model of a configuration on the meta device, with one layer: its classes, and how they draw first values.

    ValueError: transformers refuses the configuration, or its layers are of a kind that is not known here.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    values = json.loads(config)
    family = values.pop("model_type", None)
    if family not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)} (got {family!r})")
    try:
        made: Any = AutoConfig.for_model(family, **values)
        of_one = {key: value for key, value in values.items() if key != "layer_types"}
        one = AutoConfig.for_model(family, **{**of_one, "num_hidden_layers": 1})
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(one, attn_implementation="sdpa")
    except Exception as error:
        raise ValueError(f"transformers refuses the configuration: {' '.join(str(error).split())}") from error
    made._attn_implementation = "sdpa"  # noqa: SLF001  its property has no other name
    model.config = made
    rotary = (made.rope_parameters or {}).get("rope_type", "default")
    if rotary not in _ROTARY:
        raise ValueError(f"rope_type must be one of {', '.join(_ROTARY)} (got {rotary!r})")
    if unknown := set(getattr(made, "layer_types", None) or ()) - _LAYER_TYPES:
        raise ValueError(f"layer_types must be {' or '.join(sorted(_LAYER_TYPES))} (got {', '.join(sorted(unknown))})")
    return model


class _Part(Block):
    """A part of a model, which has transformers' names."""

    def __init__(self, inputs: Sequence[Shape], *, config: Config, lora: Lora = None, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.config, self.lora = config, lora

    def _add(self, node: str, parts: Mapping[str, nn.Module]) -> None:
        """Take modules by their names in the model, with the first values that transformers draws, and the adapters that are asked for."""
        for name, part in parts.items():
            holder, last = holder_of(self, name)
            holder.add_module(last, part)
        model = model_of(self.config)
        if torch.get_default_device().type != "meta":
            self.apply(model._init_weights)  # noqa: SLF001  the only function that draws for a part of a model
        if (lora := self.lora) is not None:
            self.requires_grad_(requires_grad=False)
            self.begun_anew = add_adapters(self, node, lora)
        if model.config.tie_word_embeddings:
            tied = {f"{EMBEDDING}.weight", f"{HEAD}.weight"} & {name for name, _ in self.named_parameters()}
            self.shared_parameters = dict.fromkeys(tied, f"{EMBEDDING}.weight")


class Embedding(_Part, Buffered):
    """The token embedding of a decoder of transformers: int64 [n, t] to the stream [n, t, w]. Windows of any length are taken."""

    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], **options: Any) -> None:
        super().__init__(inputs, **options)
        if len(inputs[0]) != 1:
            raise ValueError(f"hf-embedding reads samples of shape [tokens] (got {list(inputs[0])})")
        config = model_of(self.config).config
        self._add(EMBEDDING, {EMBEDDING: nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)})

    def forward(self, tokens_nt: Tensor) -> Streams:  # type: ignore[override]
        return (self.get_submodule(EMBEDDING)(tokens_nt),)


class AnyLayer(_Part):
    """The stream [n, t, w] to itself, with a decoder layer's attention and MLP added."""

    def __init__(
        self, inputs: Sequence[Shape], *, number: Annotated[int, "of the layer", AtLeast(0)], **options: Any
    ) -> None:
        super().__init__(inputs, **options)
        model = model_of(self.config)
        config, body = model.config, model.model
        _expect_stream(inputs, config.hidden_size)
        window = getattr(config, "sliding_window", None)
        if window is not None and inputs[0][0] > window:
            message = f"sliding_window = {window} is shorter than the context of {inputs[0][0]} tokens, which takes another mask"
            raise ValueError(f"{message}; set data.options.context to {window} or less")
        self._name = f"{LAYERS}.{number}"
        self.rotary = type(body.rotary_emb)(config=config)
        self._add(self._name, {self._name: type(body.layers[0])(config, 0)})
        self.begun_anew = (*self.begun_anew, *COEFFICIENTS)

    def residual(self, x_ntw: Tensor) -> Tensor:
        positions = torch.arange(x_ntw.shape[1], device=x_ntw.device).unsqueeze(0)
        turned = self.rotary(x_ntw, position_ids=positions)
        layer = self.get_submodule(self._name)
        value: Tensor = layer(x_ntw, attention_mask=None, position_ids=positions, position_embeddings=turned)
        return value


class Layer(AnyLayer, Buffered):
    """A decoder layer of transformers: the stream [n, t, w] to itself, with attention and MLP added."""

    streams = 1

    def forward(self, x_ntw: Tensor) -> Streams:  # type: ignore[override]
        return (self.residual(x_ntw),)


class LayerDualResidualEntry(AnyLayer, DualResidualEntry):
    """The first of a decoder's layers that are made reversible as dual residual blocks: one stream to two."""


class LayerDualResidualStep(AnyLayer, DualResidualStep):
    """A decoder layer made reversible as a dual residual block: two streams to two."""


class Logits(_Part, Head):
    """The last norm and the head of a decoder of transformers: the stream [n, t, w] to logits [n, c, t]; a second stream is passed over."""

    draws = False

    def __init__(self, inputs: Sequence[Shape], **options: Any) -> None:
        super().__init__(inputs, **options)
        model = model_of(self.config)
        config = model.config
        _expect_stream(inputs, config.hidden_size)
        norm = type(model.model.norm)(config.hidden_size, eps=config.rms_norm_eps)
        self._add(HEAD, {"model.norm": norm, HEAD: nn.Linear(config.hidden_size, config.vocab_size, bias=False)})

    def forward(self, x_ntw: Tensor, *_: Tensor) -> Streams:  # type: ignore[override]
        return (self.get_submodule(HEAD)(self.get_submodule("model.norm")(x_ntw)).transpose(1, 2),)


def _expect_stream(inputs: Sequence[Shape], width: int) -> None:
    if len(inputs[0]) != 2 or inputs[0][1] != width:  # noqa: PLR2004  tokens, features
        raise ValueError(f"it reads a stream [tokens, {width}], as hidden_size says (got {list(inputs[0])})")
