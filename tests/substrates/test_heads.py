from collections.abc import Mapping

import pytest
import torch
from tiny_models import HEADS, WIDTH, tiny_decoder, tiny_vision_transformer
from torch import Tensor, nn

from lib.substrates.architecture import architecture
from lib.substrates.heads import check_heads, head_contributions, matched_random_heads, scale_heads
from lib.substrates.hooks import Site, capture

LAYERS = 2


@pytest.fixture(params=["gpt2", "llama", "qwen3", "neox", "vit"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(name: str) -> nn.Module:
    return tiny_vision_transformer(layers=LAYERS, channels=1) if name == "vit" else tiny_decoder(name, layers=LAYERS)


@pytest.fixture
def inputs(name: str) -> Mapping[str, Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))}
    return {"input_ids": torch.randint(17, (3, 5), generator=torch.Generator().manual_seed(1))}


@torch.no_grad()
def logits(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    return model(**inputs).logits


def test_contributions_and_bias_sum_to_what_attention_adds(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    parts = architecture(model)
    sites = [Site("attn_out", layer) for layer in range(LAYERS)]
    with capture(model, sites) as seen:
        logits(model, inputs)
    for position in (-1, 0, torch.tensor([2, 0, 4])):
        written = head_contributions(model, inputs, position)
        assert written.shape == (3, LAYERS, HEADS, WIDTH)
        for layer, site in enumerate(sites):
            bias = getattr(parts.projections[layer], "bias", None)
            total = written[:, layer].sum(1) + (0 if bias is None else bias)
            torch.testing.assert_close(total, seen[site][torch.arange(3), position])


def test_scaling_is_scaling_the_columns_of_the_projection(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    heads, parts = [(0, 1), (1, 0), (1, 3)], architecture(model)
    with scale_heads(model, heads, -0.5):
        hooked = logits(model, inputs)
    with torch.no_grad():
        for layer, head in heads:
            parts.output_weights(layer)[head] *= -0.5
    torch.testing.assert_close(hooked, logits(model, inputs))


def test_at_one_position_nothing_before_it_changes(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    site = Site("attn_out", 0)
    with capture(model, [site]) as seen:
        logits(model, inputs)
        whole = seen[site]
        with scale_heads(model, [(0, 2)], 0.0, position=-1):
            logits(model, inputs)
    torch.testing.assert_close(seen[site][:, :-1], whole[:, :-1], rtol=0, atol=0)
    assert (seen[site][:, -1] - whole[:, -1]).abs().min(-1).values.max() > 0


def test_factor_one_and_leaving_change_no_bit(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    before = logits(model, inputs)
    with scale_heads(model, [(0, 0)], 1.0):
        assert torch.equal(logits(model, inputs), before)
    with pytest.raises(KeyError) as raised, scale_heads(model, [(0, 0)], 0.0):
        raise KeyError(logits(model, inputs))
    assert not torch.equal(raised.value.args[0], before)
    assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize("head", [(LAYERS, 0), (0, HEADS), (-1, 0), (0, -1)])
def test_heads_that_do_not_exist(model: nn.Module, head: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="the model has layers 0 to 1 with heads 0 to 3"):
        check_heads(model, [head])
    with pytest.raises(ValueError, match="name at least one"), scale_heads(model, [], 0.0):
        pass


def test_random_heads_have_the_same_number_in_each_layer() -> None:
    heads = [(0, 0), (2, 3), (2, 1), (5, 2), (5, 0), (5, 1)]
    generator = torch.Generator().manual_seed(0)
    draws = [matched_random_heads(heads, 4, generator) for _ in range(200)]
    for draw in draws:
        assert sorted(layer for layer, _ in draw) == sorted(layer for layer, _ in heads)
        assert len(set(draw)) == len(draw)
    assert {head for draw in draws for layer, head in draw if layer == 0} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="asked for 3 heads but has 2"):
        matched_random_heads(heads, 2, generator)
