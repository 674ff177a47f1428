"""Tests of lib.methods.token_uncertainty on tiny random models of several families."""

import contextlib
import copy
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from tiny_models import HEADS, WIDTH, bytes_tokenizer, every_family, tiny_decoder
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

import lib.methods.token_uncertainty as tokur
from lib.batch.errors import NotebookError
from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import ROOT
from lib.bench.record import Record
from lib.bench.run import RECORD_NAME
from lib.methods.token_uncertainty import (
    ChainTask,
    LowRankPerturbation,
    Responses,
    Uncertainty,
    answer_loss,
    auroc,
    confidence_baselines,
    entropy_decomposition,
    particle_filter,
    perturbed_token_probs,
    response_baselines,
    selective_majority_vote,
    semantic_entropy,
    sequence_uncertainty,
    token_uncertainty,
)


def tiny(family: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A random model in float64."""
    return tiny_decoder(family, seed, layers=2, vocabulary=6, context=32).double()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_responses(count: int = 3, start: int = 4, length: int = 3, seed: int = 0) -> Responses:
    ids = torch.randint(6, (count, start + length), generator=seeded(seed))
    lengths = torch.arange(count) % length + 1
    return Responses(ids, start, torch.arange(length) < lengths[:, None])


def written_weights(model: PreTrainedModel, perturbation: LowRankPerturbation, draws: dict[str, Tensor]) -> Tensor:
    """A copy of a grouped Llama whose weights are W0 + U' eps^T of one draw (n, r) a matrix, spelled out."""
    model = copy.deepcopy(model)
    for name, eps in draws.items():
        layer, part = name.split(".")
        module = getattr(model.model.layers[int(layer)].self_attn, f"{part}_proj")
        module.weight.data += perturbation.basis[name] @ eps.to(module.weight).T
    return model


# ---------------------------------------------------------------------------------------------------------------------
# the perturbation


@every_family
@pytest.mark.parametrize("noise", ["weight", "per_token"])
def test_the_model_is_bit_for_bit_the_same_afterwards_even_if_the_body_raises(family: str, noise: str) -> None:
    model, ids = tiny(family), some_responses().ids
    weights, before = copy.deepcopy(model.state_dict()), model(ids).logits
    perturbation = LowRankPerturbation(model, ("q", "k", "v"), rank=3, sigma=0.5, noise=noise)

    def body() -> None:
        with perturbation.sample(seeded()):
            assert not torch.allclose(model(ids).logits, before)
            raise RuntimeError("in the body")

    with pytest.raises(RuntimeError, match="in the body"):
        body()
    assert torch.equal(model(ids).logits, before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


@torch.no_grad()
def effective_weights(module: torch.nn.Module, n_inputs: int) -> Tensor:
    """W of a layer, hooks included, (outputs, inputs): what it does to unit vectors, without its bias."""
    unit = torch.eye(n_inputs, dtype=torch.float64)
    return (module(unit[None])[0] - module(torch.zeros_like(unit)[None])[0]).T


SIZE = WIDTH // HEADS
LLAMA_PLACES = [(f"model.layers.0.self_attn.{part}_proj", slice(None)) for part in "qk"]
PLACES = {  # family: for q and k of the first block, the module that holds them, and their rows in it
    "llama": LLAMA_PLACES,
    "qwen3": LLAMA_PLACES,
    "gpt2": [("transformer.h.0.attn.c_attn", slice(start, start + WIDTH)) for start in (0, WIDTH)],
    "neox": [
        (
            "gpt_neox.layers.0.attention.query_key_value",
            [3 * SIZE * head + start + row for head in range(HEADS) for row in range(SIZE)],
        )
        for start in (0, SIZE)
    ],
}


@pytest.mark.parametrize("family", PLACES)
@pytest.mark.parametrize("position", [0, 1])
def test_weights_move_by_the_formula_and_only_where_they_should(family: str, position: int) -> None:
    model = tiny(family)
    place, rows = PLACES[family][position]
    module, name = model.get_submodule(place), f"0.{'qk'[position]}"
    perturbation = LowRankPerturbation(model, ["qk"[position]], rank=5, sigma=0.3, layers=[0])
    assert list(perturbation.basis) == [name]
    before = effective_weights(module, WIDTH)
    with perturbation.sample(seeded()) as draws:
        moved = effective_weights(module, WIDTH) - before
    basis, eps = perturbation.basis[name], draws[name][0, 0].double()
    torch.testing.assert_close(moved[rows], basis @ eps.T, atol=1e-6, rtol=0)
    moved[rows] = 0
    assert moved.abs().max() < 1e-12, "the other rows of a fused matrix stay"
    left = np.linalg.svd(before[rows].numpy())[0][:, :5]
    np.testing.assert_allclose(basis @ basis.T, left @ left.T, atol=1e-6)


def test_hooks_do_what_written_weights_do() -> None:
    model, responses = tiny(), some_responses()
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.4)
    with perturbation.sample(seeded(), members=3) as draws, torch.no_grad():
        together = model(responses.ids.repeat(3, 1)).logits.unflatten(0, (3, -1))
    for member in range(3):
        plain = written_weights(model, perturbation, {name: eps[member, 0] for name, eps in draws.items()})
        torch.testing.assert_close(together[member], plain(responses.ids).logits, atol=1e-6, rtol=0)


def span_residual(delta: Tensor, basis: Tensor) -> float:
    """Largest entry of W - W0 outside span(U')."""
    return float((delta - basis @ (basis.T @ delta)).abs().max())


@pytest.mark.mutation("C3a")
def test_noise_stays_in_the_span_and_a_basis_of_right_vectors_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    module = model.model.layers[0].self_attn.q_proj

    def residual() -> tuple[int, float]:
        perturbation = LowRankPerturbation(model, ["q"], rank=4, sigma=0.3, layers=[0])
        before = effective_weights(module, WIDTH)
        with perturbation.sample(seeded()):
            delta = effective_weights(module, WIDTH) - before
        left = torch.linalg.svd(module.weight.detach()).U[:, :4]
        return int(torch.linalg.matrix_rank(delta, rtol=1e-5)), span_residual(delta, left)

    assert residual()[0] == 4
    assert residual()[1] < 1e-5
    original = tokur._leading_vectors
    monkeypatch.setattr(tokur, "_leading_vectors", lambda weight, *rest: original(weight.T, *rest))
    assert residual()[1] > 1e-2


@pytest.mark.parametrize("noise", ["weight", "per_token"])
def test_one_token_sees_the_same_gaussian_in_both_forms(noise: str) -> None:
    model, n = tiny(), 20_000
    module = model.model.layers[0].self_attn.k_proj
    x = torch.randn(WIDTH, generator=seeded(1), dtype=torch.float64)
    perturbation = LowRankPerturbation(model, ["k"], rank=4, sigma=0.2, noise=noise, layers=[0])
    with perturbation.sample(seeded(2), members=n), torch.no_grad():
        shifts = module(x.expand(n, 1, WIDTH))[:, 0] - module.weight @ x
    basis = perturbation.basis["0.k"].double()
    expected = 0.2**2 * x.square().sum() * basis @ basis.T
    assert torch.linalg.norm(torch.cov(shifts.T) - expected) < 0.05 * torch.linalg.norm(expected)
    assert torch.linalg.norm(shifts.mean(0)) < 5 * math.sqrt(expected.trace() / n)


@pytest.mark.parametrize("noise", ["weight", "per_token"])
def test_first_member_may_be_the_unperturbed_model(noise: str) -> None:
    model, responses = tiny(), some_responses()
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.4, noise=noise)
    probs = perturbed_token_probs(model, perturbation, responses, 3, generator=seeded(), include_mean=True)
    plain = model(responses.ids).logits[:, responses.start - 1 : -1].softmax(-1)
    torch.testing.assert_close(probs[0], plain)
    assert (probs[1:] - plain).abs().amax((1, 2, 3)).min() > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# distributions of the members


def test_stepwise_draws_are_fresh_at_each_token_and_reach_the_whole_prefix() -> None:
    model, responses = tiny(), some_responses()
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.4)
    probs = perturbed_token_probs(model, perturbation, responses, 2, generator=seeded(5))
    with perturbation.sample(seeded(5), members=2, steps=3) as draws:
        pass
    for member, step in itertools.product(range(2), range(3)):
        plain = written_weights(model, perturbation, {name: eps[member, step] for name, eps in draws.items()})
        logits = plain(responses.ids[:, : responses.start + step]).logits[:, -1]
        torch.testing.assert_close(probs[member, :, step], logits.softmax(-1), atol=1e-6, rtol=0)


def test_joint_draws_are_shared_by_all_tokens() -> None:
    model, responses = tiny(), some_responses()
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.4)
    probs = perturbed_token_probs(model, perturbation, responses, 2, generator=seeded(5), sampling="joint")
    with perturbation.sample(seeded(5), members=2) as draws:
        pass
    plain = written_weights(model, perturbation, {name: eps[1, 0] for name, eps in draws.items()})
    expected = plain(responses.ids).logits[:, responses.start - 1 : -1].softmax(-1)
    torch.testing.assert_close(probs[1], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("sampling", ["stepwise", "joint"])
def test_scores_do_not_depend_on_chunks_company_or_left_padding(sampling: str) -> None:
    model, responses = tiny(), some_responses(5)
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.4)

    def score(of: Responses, **options: int) -> Tensor:
        return token_uncertainty(model, perturbation, of, [4], generator=seeded(1), sampling=sampling, **options)[
            0
        ].total

    alone, padding = score(responses), torch.full((5, 2), 3)
    torch.testing.assert_close(score(responses, max_sequences=1), alone)
    torch.testing.assert_close(score(responses[2:3]), alone[2:3])
    torch.testing.assert_close(score(responses[torch.tensor([4, 0])]), alone[[4, 0]])
    attention = torch.cat([torch.zeros_like(padding), torch.ones_like(responses.ids)], 1)
    padded = Responses(torch.cat([padding, responses.ids], 1), responses.start + 2, responses.mask, attention)
    torch.testing.assert_close(score(padded), alone)


def test_smaller_sets_of_members_are_the_first_of_the_largest() -> None:
    model, responses = tiny("gpt2"), some_responses()
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.4)
    two, six = token_uncertainty(model, perturbation, responses, [2, 6], generator=seeded())
    probs = perturbed_token_probs(model, perturbation, responses, 6, generator=seeded())
    torch.testing.assert_close(two.epistemic, entropy_decomposition(probs[:2]).epistemic)
    torch.testing.assert_close(six.total, entropy_decomposition(probs).total)
    assert (six.epistemic > two.epistemic).any()


@every_family
def test_no_strength_no_epistemic_uncertainty(family: str) -> None:
    model, responses = tiny(family).float(), some_responses()
    unmoved = LowRankPerturbation(model, rank=2, sigma=0.3).with_sigma(0.0)
    score = token_uncertainty(model, unmoved, responses, [8], generator=seeded())[0]
    assert score.epistemic.abs().max() < 1e-6
    torch.testing.assert_close(score.total, response_baselines(model, responses, 2)["PE"], atol=1e-5, rtol=0)


# ---------------------------------------------------------------------------------------------------------------------
# entropies


def random_probs(seed: int, members: int = 4, vocabulary: int = 5) -> Tensor:
    """Distributions (M, 3, V), peaked for some seeds, one outcome impossible."""
    raw = torch.rand(members, 3, vocabulary, generator=seeded(seed), dtype=torch.float64) ** (1 + 5 * (seed % 7))
    raw[0, 0, 0] = 0
    return raw / raw.sum(-1, keepdim=True)


def worst_violation(probs: Tensor) -> float:
    """Largest violation of TU = AU + EU, 0 <= EU <= log M and TU <= log V."""
    total, aleatoric, epistemic = entropy_decomposition(probs)
    members, vocabulary = len(probs), probs.shape[-1]
    excess = [
        (total - aleatoric - epistemic).abs(),
        -epistemic,
        epistemic - math.log(members),
        total - math.log(vocabulary),
    ]
    return max(float(part.max()) for part in excess)


def test_entropies_by_hand() -> None:
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(
        torch.stack(entropy_decomposition(certain)), torch.tensor([math.log(2), 0, math.log(2)]).double()
    )
    same = torch.tensor([[0.25, 0.75], [0.25, 0.75]])
    total, aleatoric, epistemic = entropy_decomposition(same)
    assert total == aleatoric == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    assert epistemic == 0, "exactly, for two members"


@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_entropies_keep_their_identity_and_bounds_and_know_no_order(seed: int, order: list[int]) -> None:
    probs = random_probs(seed)
    assert worst_violation(probs) < 1e-9
    for one, other in zip(
        entropy_decomposition(probs), entropy_decomposition(probs[order][..., [3, 1, 4, 0, 2]]), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert entropy_decomposition(probs[:1]).epistemic.abs().max() < 1e-12


@pytest.mark.mutation("C1")
def test_a_divergence_taken_the_other_way_round_breaks_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = random_probs(3).clamp(min=1e-3)
    probs /= probs.sum(-1, keepdim=True)
    assert worst_violation(probs) < 1e-6
    monkeypatch.setattr(torch, "xlogy", lambda p, ratio: -(p / ratio) * ratio.log())
    assert worst_violation(probs) > 1e-3


def chain_rule_gap(model: PreTrainedModel, steps: int = 4, vocabulary: int = 6) -> float:
    """|sum over all responses y of p(y) sum_t TU_t - H[p(y)]| with the same draws for every y."""
    every = torch.cartesian_prod(*[torch.arange(vocabulary)] * steps)
    ids = torch.cat([torch.tensor([[1, 4, 2]]).expand(len(every), -1), every], 1)
    responses = Responses(ids, 3, torch.ones_like(every, dtype=torch.bool))
    perturbation = LowRankPerturbation(model, rank=4, sigma=0.6)
    probs = perturbed_token_probs(model, perturbation, responses, 3, generator=seeded(2), max_sequences=2048)
    p = probs.mean(0).gather(-1, every[..., None])[..., 0].prod(1)
    assert p.sum() == pytest.approx(1, abs=1e-6)
    expected = sequence_uncertainty(tokur.entropy_decomposition(probs).total, responses.mask)
    return abs(float((p * expected).sum() + torch.special.xlogy(p, p).sum()))


@pytest.mark.mutation("C2")
def test_chain_rule_over_all_responses_and_averaged_entropies_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny().float()
    assert chain_rule_gap(model) < 1e-5
    original = tokur.entropy_decomposition
    monkeypatch.setattr(tokur, "entropy_decomposition", lambda probs: Uncertainty(*[original(probs).aleatoric] * 3))
    assert chain_rule_gap(model) > 1e-2


# ---------------------------------------------------------------------------------------------------------------------
# scores of responses


def test_sequence_uncertainty_sums_or_averages_response_tokens_only() -> None:
    values = torch.tensor([[1.0, 2.0, math.nan], [3.0, math.inf, 5.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert sequence_uncertainty(values, mask).tolist() == [3, 3]
    assert sequence_uncertainty(values, mask, normalize=True).tolist() == [1.5, 3]


def test_baselines_by_hand() -> None:
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    scores = confidence_baselines((p.log() + 7)[None, None], torch.tensor([[1]]), top_k=2)
    expected = {
        "LL": -math.log(0.25),
        "PE": 1.5 * math.log(2),
        "Self-Certainty": -sum(math.log((1 / 3) / q) for q in (0.5, 0.25, 0.25)) / 3,
        "DeepConf": (math.log(0.5) + math.log(0.25)) / 2,
        "length": 1.0,
    }
    assert {name: float(value) for name, value in scores.items()} == pytest.approx(expected)


def test_baselines_in_chunks_read_the_response() -> None:
    model, responses = tiny("gpt2"), some_responses(5)
    scores = response_baselines(model, responses, 3, max_sequences=2)
    log_p = model(responses.ids).logits.log_softmax(-1)
    for row, column in itertools.product(range(5), range(3)):
        token = responses.ids[row, 4 + column]
        assert scores["LL"][row, column] == pytest.approx(-log_p[row, 3 + column, token].item())


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=12))
def test_auroc_is_sklearn_s(rows: list[tuple[int, bool]]) -> None:
    scores, wrong = np.array(rows).T
    if 0 < wrong.sum() < len(wrong):
        assert auroc(scores, wrong) == pytest.approx(roc_auc_score(wrong, scores))
        assert auroc(-scores, wrong) == pytest.approx(1 - auroc(scores, wrong))
        stacked = auroc(np.stack([scores, 3 - 2 * scores]), wrong)
        assert stacked == pytest.approx([auroc(scores, wrong), 1 - auroc(scores, wrong)])


def test_semantic_entropy_counts_equal_answers() -> None:
    answers = torch.tensor([[3, 3, 3, 3], [1, 2, 3, 4], [7, 7, 8, 8]])
    assert semantic_entropy(answers).tolist() == pytest.approx([0, math.log(4), math.log(2)])


def test_selective_vote_by_brute_force() -> None:
    generator = np.random.default_rng(0)
    answers, confidence = (
        generator.integers(4, size=(200, 8)),
        generator.permuted(np.tile(np.arange(8.0), (200, 1)), axis=1),
    )
    for percent in (10, 50, 75, 100):
        chosen = selective_majority_vote(torch.tensor(answers), torch.tensor(confidence), percent).tolist()
        for row, (given_answers, order) in enumerate(zip(answers, np.argsort(-confidence), strict=True)):
            kept = [given_answers[i] for i in order[: max(1, round(8 * percent / 100))]]
            assert chosen[row] == max(kept, key=kept.count), "max takes the first, so the most confident, of a tie"


# ---------------------------------------------------------------------------------------------------------------------
# particle filter


def test_particles_with_a_high_reward_take_over_in_softmax_proportion() -> None:
    def step(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"kind": state["kind"], "finished": state["finished"], "age": state["age"] + 1}

    kind = torch.arange(2000)[None].remainder(2).expand(3, -1)
    start = {"kind": kind, "finished": torch.zeros_like(kind, dtype=torch.bool), "age": torch.zeros_like(kind)}
    end = particle_filter(step, lambda state: state["kind"].double() * math.log(3), start, 2, seeded())
    assert end["kind"].double().mean(1).tolist() == pytest.approx([0.75] * 3, abs=0.04)
    assert (end["age"] == 2).all()
    assert particle_filter(step, lambda state: state["kind"].double(), start, 1, seeded())["kind"].equal(kind)


def test_filter_stops_when_all_have_finished_and_leaves_finished_questions_alone() -> None:
    def step(state: dict[str, Tensor]) -> dict[str, Tensor]:
        steps = state["steps"] + ~state["finished"]
        return {"steps": steps, "finished": steps >= state["limit"], "limit": state["limit"], "name": state["name"]}

    limit = torch.tensor([[1, 1, 1], [3, 3, 3]])
    start = {"steps": torch.zeros_like(limit), "finished": torch.zeros_like(limit, dtype=torch.bool)}
    start |= {"limit": limit, "name": torch.arange(3).expand(2, -1)}
    end = particle_filter(step, lambda state: 100.0 * state["name"], start, 50, seeded())
    assert end["steps"].tolist() == [[1, 1, 1], [3, 3, 3]]
    assert end["name"].tolist() == [[0, 1, 2], [2, 2, 2]]


# ---------------------------------------------------------------------------------------------------------------------
# the chains


def test_chains_are_right_and_training_never_meets_a_withheld_entry() -> None:
    task = ChainTask(seed=3)
    assert int(task.withheld.sum()) == round(0.1 * 3 * 121)
    for withheld in (False, True):
        chains = task.sample(300, seeded(), withheld=withheld)
        right, gap = task.judge(chains)
        assert right.all()
        assert bool(gap.any()) is withheld
    assert set(chains.lengths.tolist()) == {2, 3, 4, 5, 6}
    for row in range(40):  # spelled out
        ids, length = chains.ids[row].tolist(), int(chains.lengths[row])
        value = ids[0]
        for k in range(length):
            operation, operand = "+-*"[ids[1 + 2 * k] - 11], ids[2 + 2 * k]
            value = eval(f"({value} {operation} {operand}) % 11")
            assert ids[task.start + k] == value
        assert ids[1 + 2 * length : task.start] == [14] * (task.start - 2 - 2 * length) + [15]


def test_a_wrong_step_is_blamed_once() -> None:
    task = ChainTask(seed=3)
    chains = task.sample(100, seeded(), withheld=True)
    ids = chains.ids.clone()
    ids[:, task.start] = 15  # no number
    right, gap = task.judge(Responses(ids, task.start, chains.mask))
    assert not right[:, 0].any()
    assert right[:, 1].all()
    assert not gap[:, 1].any()
    ids[:, task.start] = (chains.tokens[:, 0] + 1) % 11
    right, _ = task.judge(Responses(ids, task.start, chains.mask))
    values, operations, operands = ids[:, task.start], ids[:, 3] - 11, ids[:, 4]
    assert right[:, 1].equal(~chains.mask[:, 1] | (task.table[operations, values, operands] == ids[:, task.start + 1]))


def test_answer_loss_is_the_mean_over_answer_tokens_and_has_the_right_gradient() -> None:
    model, chains = tiny("gpt2"), some_responses(4)
    log_p = model(chains.ids).logits.log_softmax(-1)
    terms = [-log_p[b, 3 + t, chains.tokens[b, t]] for b in range(4) for t in range(3) if chains.mask[b, t]]
    torch.testing.assert_close(answer_loss(model, chains), torch.stack(terms).mean())


# ---------------------------------------------------------------------------------------------------------------------
# bad input


def test_bad_perturbations() -> None:
    model = tiny()
    for arguments, message in (
        ({"rank": 13}, "rank must lie between 1 and 8 for matrix 0.k"),
        ({"rank": 0}, "rank must lie"),
        ({"sigma": -0.1}, "sigma is a standard deviation"),
        ({"sigma": math.nan}, "sigma is a standard deviation"),
        ({"target": ["q_proj"]}, "no attention matrix 'q_proj'"),
        ({"target": []}, "target is empty"),
        ({"noise": "weights"}, "did you mean 'weight'"),
    ):
        with pytest.raises(ValueError, match=message):
            LowRankPerturbation(model, **arguments)
    with pytest.raises(ValueError, match="sigma is a standard deviation"):
        LowRankPerturbation(model).with_sigma(-1)
    with pytest.raises(ValueError, match="of a known family"):
        LowRankPerturbation(BertForMaskedLM(BertConfig(hidden_size=24, num_attention_heads=4, num_hidden_layers=1)))
    model.model.layers[1].self_attn.q_proj.weight.data[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"matrix 1\.q holds numbers that are not finite"):
        LowRankPerturbation(model)


def test_bad_scoring() -> None:
    model, responses = tiny(), some_responses()
    perturbation = LowRankPerturbation(model, rank=2)
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        perturbed_token_probs(model, perturbation, responses, 0, generator=seeded())
    with pytest.raises(ValueError, match="each at least 1"):
        token_uncertainty(model, perturbation, responses, [0, 2], generator=seeded())
    with pytest.raises(ValueError, match="did you mean 'joint'"):
        perturbed_token_probs(model, perturbation, responses, 1, generator=seeded(), sampling="joined")
    per_token = LowRankPerturbation(model, rank=2, noise="per_token")
    with pytest.raises(ValueError, match="use noise='weight' for joint"):
        perturbed_token_probs(model, per_token, responses, 1, generator=seeded(), sampling="joint")
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        response_baselines(tiny().train(), responses, 2)
    with pytest.raises(ValueError, match="belongs to another model"):
        perturbed_token_probs(tiny(), perturbation, responses, 1, generator=seeded())
    with pytest.raises(ValueError, match="members and steps"), perturbation.sample(seeded(), members=0):
        pass
    with pytest.raises(ValueError, match="not made of 2 groups"), perturbation.sample(seeded(), members=2):
        model(responses.ids)


def test_bad_responses() -> None:
    ids, mask = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 2, dtype=torch.bool)
    empty = torch.tensor([[True, False], [False, False]])
    for arguments, message in (
        ((ids, 3, empty), "drop empty ones"),
        ((ids, 3, mask.long()), "must be boolean"),
        ((ids, 5, mask[:, :0]), "0 < start < S"),
        ((ids, 2, mask), "0 < start < S"),
        ((ids[0], 3, mask), "responses are ids"),
        ((ids, 3, mask, ids[:, 1:]), "attention_mask must have the shape"),
    ):
        with pytest.raises(ValueError, match=message):
            Responses(*arguments)


def test_bad_numbers() -> None:
    good = torch.full((2, 3), 1 / 3)
    for probs in (good * 1.1, good * math.nan, torch.tensor([[1.5, -0.5]]), good[:0], good[0]):
        with pytest.raises(ValueError, match=r"probabilities"):
            entropy_decomposition(probs)
    some = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="is NaN"):
        sequence_uncertainty(torch.tensor([[0.0, math.nan]]), some)
    with pytest.raises(ValueError, match="at least one token a response"):
        sequence_uncertainty(torch.zeros(1, 2), ~some)
    with pytest.raises(ValueError, match="top_k must lie between 1 and the vocabulary's size 6"):
        confidence_baselines(torch.zeros(1, 2, 6), torch.zeros(1, 2, dtype=torch.long), 7)
    with pytest.raises(ValueError, match="all responses are right"):
        auroc([0.1, 0.2], [False, False])
    with pytest.raises(ValueError, match="is NaN"):
        auroc([0.1, math.nan], [False, True])
    with pytest.raises(ValueError, match="top_percent must lie"):
        selective_majority_vote(torch.zeros(1, 2).long(), torch.zeros(1, 2), 0)
    with pytest.raises(ValueError, match="without NaN"):
        selective_majority_vote(torch.zeros(1, 2).long(), torch.tensor([[0.0, math.nan]]), 50)
    state = {"finished": torch.zeros(1, 2, dtype=torch.bool)}
    with pytest.raises(ValueError, match="reward of a particle is NaN"):
        particle_filter(lambda s: s, lambda s: torch.full((1, 2), math.nan), state, 3, seeded())
    with pytest.raises(ValueError, match="max_steps"):
        particle_filter(lambda s: s, lambda s: torch.zeros(1, 2), state, 0, seeded())
    with pytest.raises(ValueError, match="a chain task needs"):
        ChainTask(lengths=[])


# ---------------------------------------------------------------------------------------------------------------------
# the notebook at full scale, on a checkpoint small enough for a test


@pytest.mark.slow
def test_the_full_preset_reads_a_checkpoint_and_a_file_of_questions(tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer(eos_token="<end>")
    model = tiny_decoder(layers=2, vocabulary=len(tokenizer), context=128)
    rows = []
    for number in range(40):  # every other question asks for what the model says
        prompt = tokenizer(f"Question: {number * 7}?\nAnswer:", return_tensors="pt").input_ids
        said = model.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)[0, prompt.shape[1] :]
        rows.append({"question": f"{number * 7}?", "answer": tokenizer.decode(said) if number % 2 else "none"})
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    small = {"n_validation": 10, "n_test": 30, "n_curve": 20, "n_voted": 10, "n_candidates": 2, "max_tokens": 3}
    small |= {
        "preset": "full",
        "model": str(tmp_path / "model"),
        "questions": [str(questions)],
        "device": "cpu",
        "rank": 4,
    }
    notebook = read_script(ROOT / "notebooks" / "token_uncertainty.py")
    with contextlib.suppress(NotebookError):  # random answers need not show a statistical claim
        execute(notebook, tmp_path / "run", small)
    claims = {claim.id: claim for claim in Record.read(tmp_path / "run" / RECORD_NAME).claims}
    assert claims["C1"].verdict == claims["C3a"].verdict == claims["C3b"].verdict == "holds"
    assert claims["C6a"].verdict == claims["C8c"].verdict == "not evaluated"
    assert claims["C4a"].measured is not None
