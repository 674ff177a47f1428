import pytest
import torch
import torch.nn.functional as F

from lib.substrates.completions import (
    IGNORED,
    Completions,
    completion_loss,
    greedy_completions,
    small_decoder,
    target_log_probs,
)
from lib.substrates.training import Plan, train


def copying(n: int = 40) -> Completions:
    """Two tokens, to be written again in reverse."""
    prompts = torch.randint(1, 9, (n, 2), generator=torch.Generator().manual_seed(0))
    return Completions.of(prompts, prompts.flip(1))


def test_only_targets_are_labelled_and_short_sequences_are_padded() -> None:
    long, short = copying(2), Completions.of(torch.tensor([[5]]), torch.tensor([[6]]))
    both = Completions.join([long, short])
    assert both.tokens.shape == both.labels.shape == (3, 4)
    assert both.tokens[2].tolist() == [5, 6, 0, 0]
    assert both.labels[2].tolist() == [IGNORED, 6, IGNORED, IGNORED]
    assert (both.labels[:2, :2] == IGNORED).all()
    assert torch.equal(both.labels[:2, 2:], both.tokens[:2, 2:])


def test_the_loss_is_the_mean_over_targets_and_padding_counts_nothing() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_decoder(9, 8).eval()
    both = Completions.join([copying(3), Completions.of(torch.tensor([[5]]), torch.tensor([[6]]))])
    logp = target_log_probs(model, both)
    assert logp.shape == (4, 3)
    torch.testing.assert_close(completion_loss(model, both), -logp.sum() / 7)
    alone = model(torch.tensor([[5]])).logits[0, 0]
    torch.testing.assert_close(-logp[3, 0], F.cross_entropy(alone, torch.tensor(6)))
    assert (logp[3, 1:] == 0).all()
    assert (logp[:3, 0] == 0).all()


def test_a_small_decoder_learns_and_writes_what_it_learnt() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_decoder(9, 8, width=32)
    data = copying()
    before = completion_loss(model, data).item()
    train(model, data.draw, completion_loss, Plan(250, 1e-2), generator=torch.Generator().manual_seed(1))
    assert completion_loss(model.eval(), data).item() < 0.1 < before
    written = greedy_completions(model, data.tokens[:, :2], 2)
    assert (written == data.tokens[:, 2:]).float().mean() > 0.95
    without_cache = model(torch.cat([data.tokens[:, :2], written[:, :1]], 1)).logits[:, -1].argmax(-1)
    assert torch.equal(written[:, 1], without_cache)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="as many rows"):
        Completions.of(torch.ones(3, 2, dtype=torch.long), torch.ones(2, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="as many rows"):
        Completions.of(torch.ones(0, 2, dtype=torch.long), torch.ones(0, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="multiple of the heads"):
        small_decoder(9, 8, width=30)
    with pytest.raises(ValueError, match="context of 8"):
        greedy_completions(small_decoder(9, 8), torch.ones(1, 7, dtype=torch.long), 2)
