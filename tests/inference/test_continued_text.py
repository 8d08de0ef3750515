"""Texts continued by networks of next tokens: what is drawn, and `petra-graph predict --prompt`."""

from __future__ import annotations

import json

import torch

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.inference.predict import draw_tokens


def network(tokens):
    """The logits 0, 1, 2 for every token."""
    assert tokens.shape[1] <= 4
    return torch.arange(3.0)[None, :, None].expand(1, 3, tokens.shape[1])


def drawn(tokens, **options):
    return draw_tokens(network, [0, 1], tokens, context=4, **options)


def test_the_likeliest_token_always_the_likeliest_two_and_each_by_its_share():
    assert drawn(tokens=5, temperature=0.0) == [0, 1, 2, 2, 2, 2, 2]
    before = torch.get_rng_state()
    assert set(drawn(tokens=200, top_k=2)[2:]) == {1, 2}
    found = drawn(tokens=2000, temperature=1.0)
    shares = torch.tensor(found[2:]).bincount(minlength=3) / 2000
    torch.testing.assert_close(shares, torch.arange(3.0).softmax(0), rtol=0, atol=0.04)
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn(tokens=2000, temperature=1.0) == found
    assert drawn(tokens=2000, temperature=1.0, seed=1) != found


def test_a_run_continues_a_text(letters, capsys):
    def said(*options):
        capsys.readouterr()
        assert main(["predict", "latest", "--prompt", "fg", *options]) == 0
        return capsys.readouterr().out

    assert said("--temperature", "0", "--tokens", "9") == "fghabcdefgh\n"
    hot = ("--temperature", "9", "--tokens", "60")
    assert said(*hot) == said(*hot) != said(*hot, "--seed", "1")
    assert json.loads(said("--tokens", "3", "--json"))["text"].startswith("fg")
    assert pg.open_run("latest").sample(prompt="fg", temperature=9, tokens=60) + "\n" == said(*hot)


def test_a_text_that_has_no_tokens(letters, capsys):
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "FG"]) == 2
    assert "'FG' has other letters than a to h\n    help: write small letters" in capsys.readouterr().err
