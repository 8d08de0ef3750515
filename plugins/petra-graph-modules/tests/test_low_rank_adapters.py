"""Low-rank adapters change nothing at the start, have peft's names, and merge into the weights that they adapt."""

from __future__ import annotations

import copy

import pytest
import torch
from petra_graph_modules.low_rank_adapters import adaptable, add_adapters, merge_adapters
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(6, 6), nn.Linear(6, 4, bias=False)

    def forward(self, x):
        return self.v_proj(self.q_proj(x).tanh())


def adapted(dropout=0.0):
    torch.manual_seed(0)
    plain = Attention().double()
    made = copy.deepcopy(plain)
    add_adapters(made, ["q_proj", "v_proj"], rank=2, alpha=6.0, dropout=dropout)
    return plain, made


X = torch.randn(5, 6, dtype=torch.float64)


def test_a_new_adapter_changes_no_bit_and_no_name():
    plain, made = adapted(dropout=0.5)
    assert torch.equal(made(X), plain(X))
    assert list(made.state_dict()) == [
        "q_proj.weight",
        "q_proj.bias",
        "q_proj.lora_A.weight",
        "q_proj.lora_B.weight",
        "v_proj.weight",
        "v_proj.lora_A.weight",
        "v_proj.lora_B.weight",
    ]
    assert made.q_proj.lora_A.weight.abs().sum() > 0


def test_an_adapter_adds_its_scaled_product():
    plain, made = adapted()
    nn.init.normal_(made.q_proj.lora_B.weight)
    by_hand = copy.deepcopy(plain)
    by_hand.q_proj.weight.data += 3.0 * made.q_proj.lora_B.weight.data @ made.q_proj.lora_A.weight.data
    assert torch.allclose(made(X), by_hand(X), rtol=1e-12)


def test_merged_weights_compute_the_same_under_the_names_of_before():
    plain, made = adapted()
    nn.init.normal_(made.v_proj.lora_B.weight)
    expected = made(X)
    merge_adapters(made)
    assert list(made.state_dict()) == list(plain.state_dict())
    assert torch.allclose(made(X), expected, rtol=1e-12)
    assert not torch.equal(made(X), plain(X))


def test_dropout_is_of_the_adapter_s_input_alone():
    _, made = adapted(dropout=0.5)
    nn.init.normal_(made.v_proj.lora_B.weight)
    assert not torch.equal(made(X), made(X))
    made.eval()
    assert torch.equal(made(X), made(X))


def test_layers_whose_weights_are_used_without_a_call_are_not_adaptable():
    """nn.MultiheadAttention reads out_proj.weight itself, so that a hook there would never run."""

    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    block = nn.ModuleDict(
        {"a": nn.MultiheadAttention(4, 2), "b": nn.Linear(2, 2), "c": Own(2, 2), "d": nn.Conv1d(2, 2, 1)}
    )
    assert list(adaptable(block)) == ["b"]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_adapters_are_where_their_layer_is(device):
    with torch.device(device):
        made = Attention()
    add_adapters(made, ["q_proj"], rank=2, alpha=1.0, dropout=0.0)
    assert made.q_proj.lora_B.weight.device.type == device
