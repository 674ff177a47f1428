import pytest
import torch
from tiny_models import FAMILIES, tiny_decoder
from torch import Tensor, nn
from torch.func import functional_call, vmap
from transformers import PreTrainedModel

from lib.substrates.architecture import architecture
from lib.substrates.tail import DecoderTail, tail_states

WORDS = 17
TOKENS = torch.randint(WORDS, (5, 7), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([7, 4, 5, 7, 2])


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_decoder(request.param, vocabulary=WORDS)


def tail_of(model: nn.Module, blocks: int, words: list[int] | None = None) -> DecoderTail:
    return DecoderTail(model, blocks, 2, torch.Generator().manual_seed(1), words)


def shaken(tail: DecoderTail, count: int) -> dict[str, Tensor]:
    """`count` sets of updates, all entries random."""
    generator = torch.Generator().manual_seed(2)
    return {
        name: 0.3 * torch.randn(count, *parameter.shape, generator=generator)
        for name, parameter in tail.named_parameters()
        if parameter.requires_grad
    }


def merge(model: nn.Module, tail: DecoderTail, blocks: int, updates: dict[str, Tensor]) -> None:
    """Adds the updates to the model's own weights, in the order in which the tail draws them."""
    parts, first = architecture(model), 3 - blocks
    pairs = list(zip(*[iter(updates.values())] * 2, strict=True))  # (a, b) of each matrix
    names = list(updates)[::2]
    for (a, b), name in zip(pairs, names, strict=True):
        places = parts.mlp_downs if name.startswith("mlps") else parts.projections
        layer = first if name.startswith("projection.") else first + int(name.split(".")[1])
        matrix = places[layer + name.startswith("attentions")]
        matrix.get_parameter("weight").data += b @ a if isinstance(matrix, nn.Linear) else (b @ a).T


@pytest.mark.parametrize("blocks", [1, 2, 3])
@torch.no_grad()
def test_the_tail_continues_the_model(model: PreTrainedModel, blocks: int) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tail, states = tail_of(model, blocks), tail_states(model, TOKENS, blocks, chunk=2)
    expected = model(TOKENS).logits
    torch.testing.assert_close(tail(*states), expected)
    rows = torch.arange(5)
    some = tail_of(model, blocks, [3, 9])(*states, LENGTHS - 1)
    torch.testing.assert_close(some, expected[rows, LENGTHS - 1][:, [3, 9]])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_padding_on_the_right_is_not_seen(model: PreTrainedModel) -> None:
    padded = tail_of(model, 2)(*tail_states(model, TOKENS, 2), LENGTHS - 1)
    for row, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(padded[row], model(TOKENS[row : row + 1, :length]).logits[0, -1])


@pytest.mark.parametrize("blocks", [1, 2])
@torch.no_grad()
def test_updates_are_weights_and_many_sets_run_as_one(model: PreTrainedModel, blocks: int) -> None:
    tail, states = tail_of(model, blocks), tail_states(model, TOKENS, blocks)
    updates = shaken(tail, 3)
    assert sum(value[0].numel() for value in updates.values()) == blocks * 2 * (
        architecture(model).n_heads * architecture(model).head_dim
        + 16
        + architecture(model).mlp_downs[0].get_parameter("weight").numel() // 16
        + 16
    )

    def logits(state: dict[str, Tensor]) -> Tensor:
        return functional_call(tail, state, (*states, LENGTHS - 1))

    together = vmap(logits)(updates)
    for index in range(3):
        torch.testing.assert_close(together[index], logits({n: v[index] for n, v in updates.items()}))
    merge(model, tail, blocks, {name: value[0] for name, value in updates.items()})
    torch.testing.assert_close(together[0], model(TOKENS).logits[torch.arange(5), LENGTHS - 1])


def test_only_the_updates_are_trained_and_they_start_at_nothing(model: PreTrainedModel) -> None:
    tail = tail_of(model, 2)
    trained = [name for name, parameter in tail.named_parameters() if parameter.requires_grad]
    assert len(trained) == 8
    assert all(name.endswith((".a.weight", ".b.weight")) for name in trained)
    assert all((tail.get_parameter(name) == 0).all() for name in trained if name.endswith(".b.weight"))
    only_b = DecoderTail(model, 2, 2, torch.Generator().manual_seed(1), train_a=False)
    assert [name for name, p in only_b.named_parameters() if p.requires_grad] == [n for n in trained if ".b." in n]
    exact = tail.double()(*(part.double() for part in tail_states(model, TOKENS, 2)))
    torch.testing.assert_close(exact.float(), model(TOKENS).logits)


def test_models_and_numbers_of_blocks_that_do_not_fit() -> None:
    model = tiny_decoder()
    for blocks in (0, 4):
        with pytest.raises(ValueError, match=r"blocks must lie in 1\.\.3"):
            tail_of(model, blocks)
        with pytest.raises(ValueError, match=r"blocks must lie in 1\.\.3"):
            tail_states(model, TOKENS, blocks)
    with pytest.raises(ValueError, match="causal language model"):
        tail_of(model.base_model, 1)
    with pytest.raises(ValueError, match="no transformer of a known family"):
        tail_of(nn.Linear(2, 2), 1)
