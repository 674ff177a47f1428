"""The score, the detector's features, shaping and GRPO, against loops and hand calculation, on tiny random decoders."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score
from tiny_models import bytes_tokenizer, tiny_decoder
from torch import Tensor
from transformers import PreTrainedModel

import lib.methods.reasoning_score as rs
from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import ROOT
from lib.bench.record import Record
from lib.bench.run import RECORD_NAME
from lib.substrates.conversations import respond
from lib.substrates.training import Plan

SPANS = torch.tensor([[[3, 5], [5, 6], [7, 10]], [[2, 4], [6, 9], [-1, -1]]])
OPTIONS: dict[str, Any] = {"early_window": 2, "late_share": 0.5, "shallow": 0.15, "tau": 0.6}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(rows: int = 2, length: int = 10, seed: int = 0) -> Tensor:
    return torch.randint(31, (rows, length), generator=generator(seed))


def log_probs(seed: int, *shape: int, spread: float = 3.0) -> Tensor:
    logits = torch.randn(*shape, generator=generator(seed), dtype=torch.float64) * spread
    return logits.log_softmax(-1)


# divergence


def broken_bounds() -> int:
    """The check of C1."""
    p, q = log_probs(1, 500, 7), log_probs(2, 500, 7)
    there, back, none = rs.js_divergence(p, q), rs.js_divergence(q, p), rs.js_divergence(p, p)
    outside = (there < -1e-12) | (there > math.log(2) + 1e-12)
    return int((outside | ((there - back).abs() > 1e-12) | (none.abs() > 1e-12) | (there < 1e-12)).sum())


def test_divergence_by_hand() -> None:
    one, other = torch.tensor([1.0, 0.0]).double().log(), torch.tensor([0.0, 1.0]).double().log()
    assert rs.js_divergence(one, other).item() == pytest.approx(math.log(2), abs=1e-15)
    assert rs.js_divergence(one, one).item() == 0
    half = torch.tensor([0.5, 0.5]).double().log()
    expected = 0.5 * math.log(1 / 0.75) + 0.25 * math.log(0.5 / 0.75) + 0.25 * math.log(0.5 / 0.25)
    assert rs.js_divergence(one, half).item() == pytest.approx(expected, abs=1e-15)
    with pytest.raises(ValueError, match="one shape"):
        rs.js_divergence(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="NaN"):
        rs.js_divergence(torch.tensor([math.nan, 0.0]), torch.zeros(2))


@pytest.mark.mutation("C1")
def test_a_one_sided_divergence_breaks_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_bounds() == 0
    monkeypatch.setattr(rs, "js_divergence", lambda p, q: (p.exp() * (p - q)).sum(-1))
    assert broken_bounds() > 0


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.floats(0.1, 60), st.integers(0, 2**20))
def test_divergence_is_bounded_symmetric_and_blind_to_order(size: int, spread: float, seed: int) -> None:
    p, q = log_probs(seed, size, spread=spread), log_probs(seed + 1, size, spread=spread)
    value = rs.js_divergence(p, q)
    assert -1e-12 <= value <= math.log(2) + 1e-12
    torch.testing.assert_close(rs.js_divergence(q, p), value, rtol=0, atol=1e-12)
    torch.testing.assert_close(rs.js_divergence(p.flip(0), q.flip(0)), value, rtol=0, atol=1e-12)


# scores of a model


def slow_signals(model: PreTrainedModel, rows: Tensor, depths: list[int]) -> dict[str, Tensor]:
    """One token and one depth at a time, from the model's own hidden states."""
    body, found = model.base_model, torch.zeros(len(depths) + 2, *rows.shape, dtype=torch.float64)
    norm = body.norm if hasattr(body, "norm") else body.ln_f
    for b, row in enumerate(rows):
        with torch.no_grad():
            output = model(row[None], output_hidden_states=True)
            final = output.logits[0].double().log_softmax(-1)
            for t in range(1, len(row)):
                q = final[t - 1].exp()
                for j, depth in enumerate(depths):
                    logits = model.lm_head(norm(output.hidden_states[depth][0, t - 1]))
                    p = logits.double().softmax(-1)
                    m = (p + q) / 2
                    found[j, b, t] = ((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2
                found[-2, b, t] = -final[t - 1, row[t]]
                found[-1, b, t] = -(q * q.log()).sum()
    return {"divergence": found[:-2], "surprisal": found[-2], "entropy": found[-1]}


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_signals_are_those_of_a_loop(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny_decoder(family, layers=4), tokens()
    slow = slow_signals(model, rows, [2, 3])
    inside = rs.step_membership(SPANS, 10).any(1)
    torch.testing.assert_close(-rs.token_log_probs(model, rows).double(), slow["surprisal"], rtol=1e-4, atol=1e-5)
    for logits_at_once in (2**23, 40):
        monkeypatch.setattr(rs, "_LOGITS_AT_ONCE", logits_at_once)
        seen = rs.token_signals(model, rows, SPANS)
        for name, values in slow.items():
            torch.testing.assert_close(getattr(seen, name).double(), values * inside, rtol=1e-4, atol=1e-5)
    score = rs.reasoning_score(model, rows, SPANS)
    assert score.shape == (2, 3)
    assert score[1, 2].isnan()
    expected = slow["divergence"].mean(0)
    assert score[0, 2].item() == pytest.approx(expected[0, 7:10].mean().item(), rel=1e-4)
    assert score[1, 1].item() == pytest.approx(expected[1, 6:9].mean().item(), rel=1e-4)
    assert score[~score.isnan()].max() <= math.log(2) + 1e-6


def test_no_more_logits_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, largest = tiny_decoder("llama", layers=4), []
    whole = rs.lens_logits

    def watched(parts: PreTrainedModel, streams: Tensor) -> Tensor:
        logits = whole(parts, streams)
        largest.append(logits.numel())
        return logits

    monkeypatch.setattr(rs, "lens_logits", watched)
    monkeypatch.setattr(rs, "_LOGITS_AT_ONCE", 100)
    handle = model.lm_head.register_forward_hook(lambda _, __, out: largest.append(out.numel()))
    rs.token_signals(model, tokens(), SPANS)
    handle.remove()
    assert max(largest) <= 100


def test_a_score_looks_at_its_own_tokens_and_at_none_after(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny_decoder(), tokens()
    score = rs.reasoning_score(model, rows, SPANS)
    later = rows.clone()
    later[:, 9:] = 0  # the score of a token is read where it is predicted
    torch.testing.assert_close(rs.reasoning_score(model, later, SPANS)[:, :2], score[:, :2])
    alone = rs.reasoning_score(model, rows[1:], SPANS[1:, :2])
    torch.testing.assert_close(alone, score[1:, :2], rtol=1e-4, atol=1e-6)
    padded = rs.reasoning_score(model, torch.cat([rows, rows], 1), SPANS)
    torch.testing.assert_close(padded, score, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_attention_between_steps_is_that_of_a_loop(family: str) -> None:
    model, rows = tiny_decoder(family, layers=4), tokens()
    before = model.config._attn_implementation
    seen = rs.token_signals(model, rows, SPANS, attention=True).attention
    assert model.config._attn_implementation == before
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = torch.stack(model(rows, output_attentions=True).attentions)[2:].mean((0, 2))
    for b, k, j in ((0, 2, 0), (0, 1, 0), (1, 1, 0), (0, 2, 2)):
        (a, z), (c, d) = SPANS[b, k].tolist(), SPANS[b, j].tolist()
        assert seen[b, k, j].item() == pytest.approx(weights[b, a:z, c:d].mean().item(), rel=1e-4)
    assert seen[1, 2].isnan().all()
    assert not rs.token_signals(model, rows, SPANS).attention.numel()


def test_steps_are_means_of_tokens_whatever_the_batch() -> None:
    model, rows = tiny_decoder(layers=4), tokens()
    by_token = rs.token_signals(model, rows, SPANS, attention=True)
    seen = rs.step_signals(model, rows, SPANS)
    torch.testing.assert_close(seen.score, rs.reasoning_score(model, rows, SPANS), equal_nan=True)
    assert seen.surprisal[0, 2].item() == pytest.approx(by_token.surprisal[0, 7:10].mean().item(), rel=1e-5)
    assert seen.entropy[1, 1].item() == pytest.approx(by_token.entropy[1, 6:9].mean().item(), rel=1e-5)
    for name, values in vars(rs.step_signals(model, rows, SPANS, batch_size=1)).items():
        torch.testing.assert_close(values, getattr(seen, name), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[[3, 3]]], "empty"),
        ([[[5, 4]]], "empty"),
        ([[[0, 3]]], "token 0"),
        ([[[3, 11]]], "nothing predicts token 0, and none is after"),
        ([[[2, 5], [4, 7]]], "overlap"),
        ([[[5, 7], [2, 4]]], "overlap"),
        ([[[-1, -1]]], "at least one step"),
        ([[[2, 4], [-1, -1], [5, 6]]], "at least one step"),
        ([[2, 4]], r"\(B, K, 2\)"),
        ([[[2.0, 4.0]]], "integers"),
    ],
)
def test_impossible_steps_are_refused(spans: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rs.reasoning_score(tiny_decoder(), tokens(1), torch.tensor(spans))


def test_models_that_cannot_be_scored_are_refused() -> None:
    rows, model = tokens(), tiny_decoder()
    for depths in ([3], [0, 2], [7]):
        with pytest.raises(ValueError, match=r"1\.\.2, below the last of this model's 3 blocks"):
            rs.reasoning_score(model, rows, SPANS, depths)
    with pytest.raises(ValueError, match="late layers"):
        rs.reasoning_score(tiny_decoder(layers=1), rows, SPANS)
    with pytest.raises(ValueError, match="vocabulary of 20 tokens is too small"):
        rs.reasoning_score(tiny_decoder(vocabulary=20), rows, SPANS)
    with pytest.raises(ValueError, match="context of 8"):
        rs.reasoning_score(tiny_decoder(context=8), rows, SPANS)
    for empty in (rows[:, :0], rows[0], rows.float()):
        with pytest.raises(ValueError, match="tokens are integers"):
            rs.reasoning_score(model, empty, SPANS)
    with torch.no_grad():
        model.lm_head.weight[3, 3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        rs.reasoning_score(model, rows, SPANS)
    with pytest.raises(ValueError, match="NaN"):
        rs.step_means(torch.full((2, 10), math.nan), SPANS)
    assert rs.late_depths(tiny_decoder(layers=4)) == [2, 3]
    assert rs.late_depths(tiny_decoder(layers=5)) == [3, 4]
    assert rs.late_depths(tiny_decoder(layers=2)) == [1]


# detector


def test_features_by_hand() -> None:
    R = np.array([[0.1, 0.3, 0.7, 0.2], [0.4, 0.4, np.nan, np.nan]])
    ppl = np.array([[1.0, 2.0, 4.0, 3.0], [5.0, 1.0, np.nan, np.nan]])
    A = np.full((2, 4, 4), 0.1)
    A[0, 2, 0], A[0, 3, 1] = 0.3, 0.5
    seen = rs.rhd_features(R, ppl, A, **OPTIONS)
    # Steps 2 and 3 are late, 0 and 1 early, of which 0 is shallow.
    pcc = np.corrcoef(R[0], ppl[0])[0, 1]
    np.testing.assert_allclose(seen[0], [0.325, 0.5, 0.4 / 1.0, pcc], rtol=1e-6)
    np.testing.assert_allclose(seen[1], [0.4, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(rs.rhd_features(R[:1], ppl[:1], A[:1], **OPTIONS), seen[:1])
    thinking = rs.rhd_features(R, ppl, A, **OPTIONS | {"tau": 0.3})[0, 2]
    assert thinking == pytest.approx(1.0), "at tau and above a step is bad too"
    np.testing.assert_allclose(rs.rhd_features(R, ppl, 7 * A, **OPTIONS), seen)


def test_features_refuse_what_does_not_fit() -> None:
    good = np.full((1, 4), 0.1)
    for R, changes, message in (
        (np.full((2, 3), 0.1), {}, r"\(B, K, K\)"),
        (good * np.nan, {}, "every chain needs a step"),
        (good * np.inf, {}, "finite score"),
        (good, {"early_window": 1}, "early_window"),
        (good, {"late_share": 1.0}, "late_share"),
        (good, {"tau": math.nan}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            rs.rhd_features(R, np.ones((1, 4)), np.ones((1, 4, 4)), **OPTIONS | changes)


def test_eigen_score_against_eigenvalues() -> None:
    Z = np.random.default_rng(0).normal(size=(3, 4, 9))
    centred = Z - Z.mean(-1, keepdims=True)
    for prompt, seen in zip(centred, rs.eigen_score(Z), strict=True):
        assert seen == pytest.approx(np.log(np.linalg.eigvalsh(prompt @ prompt.T + 1e-3 * np.eye(4))).mean())
    same = np.repeat(Z[:, :1], 4, axis=1)
    assert (rs.eigen_score(same) < rs.eigen_score(Z)).all()
    for wrong in (Z[0], Z[:, :1], np.full((1, 2, 3), np.nan)):
        with pytest.raises(ValueError, match="finite embeddings"):
            rs.eigen_score(wrong)


def test_areas_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, x = rng.random(60) < 0.4, rng.integers(0, 6, 60).astype(float)
    whole = np.zeros((1, 60), dtype=int)
    assert rs.held_out_auc(x, y, whole)[0] == pytest.approx(roc_auc_score(y, x))
    counts = rng.multinomial(60, np.full(60, 1 / 60), 3)
    expected = [roc_auc_score(y, x, sample_weight=row) for row in counts]
    np.testing.assert_allclose(rs.held_out_auc(x, y, whole, counts), expected)
    folds = rs.halvings(y, 3, rng)
    assert (np.abs(folds[:, y].sum(1) - y.sum() / 2) <= 1).all()
    halves = [(y[f == h], x[f == h]) for f in folds for h in (0, 1)]
    areas, pairs = [roc_auc_score(*half) for half in halves], [half[0].sum() * (~half[0]).sum() for half in halves]
    assert rs.held_out_auc(x, y, folds)[0] == pytest.approx(np.average(areas, weights=pairs))
    with pytest.raises(ValueError, match="NaN"):
        rs.held_out_auc(x * np.nan, y, folds)
    with pytest.raises(ValueError, match="four of each kind"):
        rs.halvings([True] * 3 + [False] * 20, 2, rng)


def test_the_detector_never_sees_the_half_it_judges() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(80) < 0.5
    folds = rs.halvings(y, 4, rng)
    seen_fits = []

    def features(fit: np.ndarray) -> np.ndarray:
        seen_fits.append(fit.copy())
        return np.where(fit, 3.0 * y, 0.0)[:, None]  # the labels, in the fitted half only

    odds = rs.held_out_scores(features, y, folds)
    assert rs.held_out_auc(odds, y, folds)[0] == pytest.approx(0.5)
    assert all(
        (fit == (fold != half)).all()
        for fit, (fold, half) in zip(seen_fits, [(f, h) for f in folds for h in (0, 1)], strict=True)
    )
    honest = rs.held_out_scores(lambda _: (y + rng.normal(size=80))[:, None], y, folds)
    assert rs.held_out_auc(honest, y, folds)[0] > 0.65


# shaping


def processes(count: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(5, 0.5), (count, 5, 3))
    return P, rng.normal(size=(count, 4, 5, 3)), rng.normal(size=(count, 5))


def changed_policies(gamma: float = 0.9) -> int:
    """The check of C2: processes whose best actions change, or whose values do not fall by the potential."""
    P, R, phi = processes()
    V, plain = rs.backward_induction(P, R, gamma)
    shaped, policy = rs.backward_induction(P, rs.shaped_tables(P, R, phi, gamma), gamma)
    kept = (policy == plain).all((1, 2)) & (np.abs(shaped[:, :-1] - V[:, :-1] + phi[:, None]) < 1e-9).all((1, 2))
    return int((~kept).sum())


def test_backward_induction_against_every_policy() -> None:
    rng = np.random.default_rng(1)
    P, R = rng.dirichlet(np.ones(2), (2, 2)), rng.normal(size=(3, 2, 2))
    V, _ = rs.backward_induction(P, R, 0.8)
    best = -np.inf
    for code in range(4**3):
        value = np.zeros(2)
        for step, actions in reversed(list(enumerate(np.array([code >> i & 1 for i in range(6)]).reshape(3, 2)))):
            value = R[step][[0, 1], actions] + 0.8 * P[[0, 1], actions] @ value
        best = np.maximum(best, value)
    np.testing.assert_allclose(V[0], best, rtol=1e-12)
    for wrong in ({"gamma": 1.1}, {"R": R[0]}, {"P": 2 * P}, {"R": R * np.nan}):
        with pytest.raises(ValueError, match=r"gamma|give P|sum to 1"):
            rs.backward_induction(**{"P": P, "R": R, "gamma": 1.0} | wrong)  # type: ignore[arg-type]


@pytest.mark.mutation("C2")
def test_a_potential_after_the_end_changes_the_best_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed_policies(1.0) == changed_policies(0.9) == 0
    P, R, phi = processes()
    mixed = rs.backward_induction(P, rs.shaped_tables(P, R, phi, 0.9))[1]
    assert (mixed != rs.backward_induction(P, R)[1]).any(), "nor may the return go undiscounted"
    right = rs.shaped_tables
    monkeypatch.setattr(rs, "shaped_tables", lambda *args: right(*args, ends_at_0=False))
    assert changed_policies() > 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.floats(0, 1), st.integers(0, 2**20))
def test_later_shaped_rewards_add_up(steps: int, gamma: float, seed: int) -> None:
    r, phi = torch.randn(2, 3, steps, generator=generator(seed), dtype=torch.float64)
    shaped = rs.potential_shaped_rewards(r, phi, gamma)
    for t in range(steps):
        expected = r[:, t:].sum(1) - phi[:, t] - (1 - gamma) * phi[:, t + 1 :].sum(1)
        torch.testing.assert_close(shaped[:, t:].sum(1), expected)
    discounts = gamma ** torch.arange(steps, dtype=torch.float64)
    torch.testing.assert_close((discounts * shaped).sum(1), (discounts * r).sum(1) - phi[:, 0])


def test_shaping_refuses_what_does_not_fit() -> None:
    r = torch.zeros(2, 3)
    for wrong in (torch.zeros(2, 4), torch.zeros(3)):
        with pytest.raises(ValueError, match="as many steps"):
            rs.potential_shaped_rewards(r, wrong, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        rs.potential_shaped_rewards(r[:, :0], r[:, :0], 1.0)
    for gamma in (1.01, -0.1, math.nan):
        with pytest.raises(ValueError, match="gamma"):
            rs.potential_shaped_rewards(r, r, gamma)
    with pytest.raises(ValueError, match="NaN"):
        rs.potential_shaped_rewards(r * math.nan, r, 1.0)


def test_rewards_of_the_three_forms_by_hand() -> None:
    scores, outcome = torch.tensor([[0.1, 0.9, 0.2]]), torch.tensor([1.0])
    options = {"alpha": 2.0, "tau": 0.5}
    torch.testing.assert_close(rs.clipped_score(scores, **options), torch.tensor([[0.2, 0.0, 0.4]]))
    seen = {form: rs.step_rewards(outcome, scores, form, **options)[0] for form in rs.REWARD_FORMS}
    torch.testing.assert_close(seen["outcome"], torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(seen["added"], torch.tensor([0.2, 0.0, 1.4]))
    torch.testing.assert_close(seen["potential"], torch.tensor([-0.2, 0.2, 1.0]))
    with pytest.raises(ValueError, match="did you mean 'added'"):
        rs.step_rewards(outcome, scores, "addd", **options)


# GRPO


def advantages_differ(prompt_potential: Tensor) -> float:
    """The check of C3: by how much shaping moves advantages of whole trajectories."""
    r = torch.randn(5, 4, 3, generator=generator(1), dtype=torch.float64)
    phi = torch.randn(5, 4, 3, generator=generator(2), dtype=torch.float64)
    phi[..., 0] = prompt_potential
    shaped = rs.potential_shaped_rewards(r, phi, 1.0)
    return (rs.grpo_advantages(shaped) - rs.grpo_advantages(r)).abs().max().item()


@pytest.mark.mutation("C3")
def test_a_potential_that_the_group_does_not_share_moves_the_advantages() -> None:
    assert advantages_differ(torch.randn(5, 1, generator=generator(3), dtype=torch.float64)) < 1e-9
    assert advantages_differ(torch.randn(5, 4, generator=generator(3), dtype=torch.float64)) > 1e-3


def test_advantages_against_loops() -> None:
    r = torch.randn(3, 4, 5, generator=generator(), dtype=torch.float64)
    whole, stepwise = rs.grpo_advantages(r), rs.grpo_advantages(r, "step")
    for p in range(3):
        sums, flat = r[p].sum(1), r[p].flatten()
        for g in range(4):
            for k in range(5):
                assert whole[p, g, k].item() == pytest.approx(((sums[g] - sums.mean()) / sums.std(correction=0)).item())
                later = sum((r[p, g, u] - flat.mean()) / flat.std(correction=0) for u in range(k, 5))
                assert stepwise[p, g, k].item() == pytest.approx(float(later))
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(rs.grpo_advantages(r[:, order], "step"), stepwise[:, order])
    torch.testing.assert_close(rs.grpo_advantages(7 * r), whole)
    torch.testing.assert_close(rs.grpo_advantages(r[:1], "step"), stepwise[:1])


@pytest.mark.parametrize("level", ["trajectory", "step"])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_equal_rewards_have_no_advantage(level: str, value: float) -> None:
    assert (rs.grpo_advantages(torch.full((2, 6, 3), value), level) == 0).all()


def test_groups_without_advantage_are_refused() -> None:
    for rewards, level, message in (
        (torch.zeros(3, 1, 4), "step", "at least two samples"),
        (torch.zeros(3, 2, 4), "steps", "did you mean 'step'"),
        (torch.full((3, 2, 4), math.nan), "step", "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            rs.grpo_advantages(rewards, level)


def test_loss_by_hand_and_its_gradient() -> None:
    old, mask = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[True, True, False]])
    logp = torch.tensor([[math.log(1.5), math.log(0.5), 9.0]], dtype=torch.float64, requires_grad=True)
    A = torch.tensor([[1.0, -1.0, 5.0]], dtype=torch.float64)
    loss = rs.grpo_loss(logp, old, logp.detach(), A, mask, 0.2, 0.02)
    assert loss.item() == pytest.approx(-(1.2 - 0.8) / 2), "both ratios are clipped"
    assert torch.autograd.grad(loss, logp)[0].abs().max() == 0
    apart = rs.grpo_loss(logp, old, old, 0 * A, mask, 0.2, 1.0).item()
    assert apart == pytest.approx(((1 / 1.5 + math.log(1.5) - 1) + (2 - math.log(2) - 1)) / 2)
    start = (0.1 * torch.randn(2, 3, dtype=torch.float64, generator=generator())).requires_grad_()
    fixed = [torch.randn(2, 3, dtype=torch.float64, generator=generator(i)) * 0.1 for i in (1, 2, 3)]
    assert torch.autograd.gradcheck(
        lambda x: rs.grpo_loss(x, *fixed, torch.ones(2, 3, dtype=torch.bool), 0.5, 0.3),
        start,  # type: ignore[call-arg]
    )
    for wrong in (mask[:, :2], torch.zeros_like(mask)):
        with pytest.raises(ValueError, match="one token counts"):
            rs.grpo_loss(logp, old, old, A, wrong, 0.2, 0.02)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_grpo_teaches_what_it_rewards(family: str) -> None:
    policy, reference, prompt = tiny_decoder(family), tiny_decoder(family), tokens(1, 3)
    spans = torch.tensor([[[3, 5], [5, 7]]])

    def roll_out(source: torch.Generator, size: int) -> rs.Rollouts:
        prompts = prompt.expand(size * 8, -1)
        rows = respond(policy, prompts, torch.ones_like(prompts, dtype=torch.bool), 4, source)
        outcome = (rows[:, 3:] < 15).double().mean(1)
        scores = rs.reasoning_score(policy, rows, spans.expand(len(rows), -1, -1))
        rewards = rs.step_rewards(outcome, scores, "potential", alpha=0.1, tau=0.5)
        return rs.Rollouts(rows, spans.expand(len(rows), -1, -1), rewards.unflatten(0, (size, 8)))

    plan = Plan(30, 3e-2, 4, weight_decay=0.0)
    losses = rs.train_grpo(policy, reference, roll_out, plan, generator=generator(), beta=0.0)
    assert len(losses) == 30

    def share(model: PreTrainedModel) -> float:
        prompts = prompt.expand(200, -1)
        rows = respond(model, prompts, torch.ones_like(prompts, dtype=torch.bool), 4, generator(9))
        return (rows[:, 3:] < 15).double().mean().item()

    assert share(policy) > share(reference) + 0.15


@pytest.mark.parametrize("wrong", [{"gamma": 1.0}, {"group_size": 1}, {"late_share": 1.0}, {"d_model": 12}, {"tau": 1}])
def test_parameters_are_checked(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        rs.Parameters(**wrong)


@pytest.mark.slow
def test_the_full_preset_reads_a_checkpoint_from_a_folder(tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer(eos_token="<end>")
    tiny_decoder(vocabulary=len(tokenizer), context=1000).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"n_traces": 16, "n_problems": 8, "n_samples": 2, "repeats": 1, "late_layers": [1, 2], "n_mdps": 2}
    notebook = read_script(ROOT / "notebooks" / "reasoning_score.py")
    execute(notebook, tmp_path / "run", {"preset": "full", "model": str(tmp_path / "model")} | sizes)
    claims = {claim.id: claim for claim in Record.read(tmp_path / "run" / RECORD_NAME).claims}
    assert claims["C1"].verdict == claims["C2"].verdict == claims["C3"].verdict == "holds"
    assert claims["C4a"].verdict == claims["C5b"].verdict == "not evaluated", "a random decoder gets nothing right"
    assert claims["C8"].measured is None
