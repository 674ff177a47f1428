import pytest
import torch
from tiny_models import tiny_decoder
from torch import Tensor, nn

from lib.substrates.lens import lens_logits, lens_ranks, residual_streams, transplanted_logits

LAYERS, WORDS = 3, 31
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
OTHER = torch.tensor([[9, 2, 3, 4], [10, 6, 7, 8]])


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return tiny_decoder(request.param)


@torch.no_grad()
def logits(model: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    return model(tokens).logits


def test_the_lens_at_the_last_depth_is_the_model(model: nn.Module) -> None:
    streams = residual_streams(model, {"input_ids": TOKENS}, None)
    assert streams.shape == (LAYERS + 1, 2, 4, 16)
    torch.testing.assert_close(lens_logits(model, streams[-1]), logits(model))
    last = residual_streams(model, {"input_ids": TOKENS})
    torch.testing.assert_close(last, streams[:, :, -1])
    mixed = residual_streams(model, {"input_ids": TOKENS}, torch.tensor([1, 3]))
    torch.testing.assert_close(mixed, streams[:, [0, 1], [1, 3]])


def test_ranks_are_places_in_the_sorted_logits(model: nn.Module) -> None:
    streams = residual_streams(model, {"input_ids": TOKENS})
    order = lens_logits(model, streams).argsort(-1, descending=True)
    for place in (0, 4, WORDS - 1):
        assert (lens_ranks(model, streams, order[..., place]) == place).all()
    assert (lens_ranks(model, 0 * streams, torch.tensor([3, 3])) >= 0).all()
    assert lens_ranks(model, streams, TOKENS[:, 0]).shape == (LAYERS + 1, 2)


def test_a_lens_that_sees_nothing_ranks_in_the_middle(model: nn.Module) -> None:
    model.get_output_embeddings().weight.data.zero_()
    ranks = lens_ranks(model, torch.ones(2, 16), torch.tensor([0, 7]))
    torch.testing.assert_close(ranks, torch.full((2,), (WORDS - 1) / 2))


def test_all_of_another_run_gives_its_logits_and_its_own_gives_none(model: nn.Module) -> None:
    before, wanted = logits(model), logits(model, OTHER)
    own, other = (residual_streams(model, {"input_ids": tokens}, None) for tokens in (TOKENS, OTHER))
    inputs = {"input_ids": TOKENS}
    # The runs differ in their first token only, so at depth 0 that token's stream is the whole difference.
    torch.testing.assert_close(transplanted_logits(model, inputs, other[0, :, 0], 0, 0), wanted[:, -1])
    for depth in range(LAYERS + 1):
        torch.testing.assert_close(transplanted_logits(model, inputs, own[depth, :, 2], depth, 2), before[:, -1])
    last = transplanted_logits(model, inputs, other[LAYERS, :, -1], LAYERS, -1)
    torch.testing.assert_close(last, wanted[:, -1])
    assert torch.equal(transplanted_logits(model, inputs, other[LAYERS, :, 0], LAYERS, 0), before[:, -1])
    torch.testing.assert_close(transplanted_logits(model, inputs, other[LAYERS, :, 0], LAYERS, 0, read=0), wanted[:, 0])
    assert torch.equal(logits(model), before)


def test_what_does_not_exist_is_refused(model: nn.Module) -> None:
    for depth in (-1, LAYERS + 1):
        with pytest.raises(ValueError, match=r"depth must lie in 0\.\.3"):
            transplanted_logits(model, {"input_ids": TOKENS}, torch.zeros(2, 16), depth, 0)
    with pytest.raises(ValueError, match="causal language model"):
        lens_logits(model.base_model, torch.zeros(1, 16))
