"""Two-hop facts, chains, stage losses and tracing, against loops and hand calculation, on random decoders."""

import copy
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.special import rel_entr
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import lib.methods.cot_circuit as cc
from lib.substrates.completions import IGNORED, small_decoder
from lib.substrates.training import Plan

ENTITIES, RELATIONS = 9, 4
SIZES = {"n_entities": ENTITIES, "n_relations": RELATIONS, "out_degree": 4, "ood_fraction": 0.3, "two_hop_ratio": 1.5}
SENTENCE = cc.Wording(question=(13, "r2", 14, "e1"), chain=("e1", 15, "e2", 16, "r2", "e2", "e3"))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def facts(**changes: float) -> cc.TwoHopFacts:
    return cc.make_two_hop_facts(**(SIZES | changes), generator=generator(3))  # type: ignore[arg-type]


def decoder(family: str = "gpt2", sharpness: float = 1.0) -> PreTrainedModel:
    """A random decoder of 20 tokens; sharper ones are surer of their choices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = small_decoder(20, 16, width=16, heads=2)
        if family == "llama":
            sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
            model = LlamaForCausalLM(LlamaConfig(vocab_size=20, num_key_value_heads=1, eos_token_id=None, **sizes))
        with torch.no_grad():
            for weights in model.parameters():
                if weights.ndim > 1:
                    weights.normal_(0, 0.3)
            model.get_input_embeddings().weight.mul_(sharpness)
    return model.eval()


def choices(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens).logits[:, -1].argmax(-1)


def confident_rows(model: PreTrainedModel) -> Tensor:
    """Rows whose bridge and answer are the model's own favourites."""
    rows = facts().id_test.clone()
    with torch.no_grad():
        rows[:, 3] = model(rows[:, :3]).logits[:, -1, :ENTITIES].argmax(-1)
        rows[:, 4] = choices(model, rows[:, :4])
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# facts


@settings(max_examples=25)
@given(
    st.integers(4, 12), st.integers(2, 6), st.floats(0.3, 0.6), st.floats(0.1, 1.0), st.integers(0, 2**20), st.data()
)
def test_every_question_is_a_composition_in_its_own_share(
    entities: int, relations: int, share: float, ratio: float, seed: int, data: st.DataObject
) -> None:
    degree = data.draw(st.integers(2, relations))
    try:
        made = cc.make_two_hop_facts(entities, relations, degree, share, ratio, generator(seed), test_items=10**6)
    except ValueError:  # a sparse graph may have too few two-hop facts of a kind
        return
    table = {
        (e, r): (tail, ood) for (e, r, tail), ood in zip(made.atomic.tolist(), made.unchained.tolist(), strict=True)
    }
    assert len(table) == entities * degree
    assert Counter(e for e, _ in table) == dict.fromkeys(range(entities), degree)
    assert {r for _, r in table} <= set(range(entities, entities + relations))
    expected: dict[bool, set] = {False: set(), True: set()}
    for ((e1, r1), (e2, ood)), r2 in product(table.items(), range(entities, entities + relations)):
        if (e2, r2) in table and table[e2, r2][1] == ood:
            expected[ood].add((e1, r1, r2, e2, table[e2, r2][0]))
    train, id_test, ood_test = (
        {tuple(row) for row in part.tolist()} for part in (made.train, made.id_test, made.ood_test)
    )
    assert ood_test == expected[True]
    assert train | id_test == expected[False]
    assert not train & id_test
    assert len(made.train) == len(train) == round(ratio * sum(not ood for _, ood in table.values()))


def test_the_same_generator_gives_the_same_facts() -> None:
    assert torch.equal(facts().train, facts().train)
    assert not torch.equal(facts().atomic, cc.make_two_hop_facts(**SIZES, generator=generator(4)).atomic)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_entities": 2}, "vocabulary"),
        ({"n_relations": 0}, "vocabulary"),
        ({"out_degree": 5}, "number of relations"),
        ({"out_degree": 0}, "number of relations"),
        ({"ood_fraction": 0.01}, "leaves no two-hop"),
        ({"ood_fraction": 1.0}, "ood_fraction must lie"),
        ({"two_hop_ratio": 99.0}, "asks for"),
        ({"two_hop_ratio": 1e-4}, "asks for"),
        ({"two_hop_ratio": -1.0}, "two_hop_ratio"),
        ({"test_items": 0}, "test_items"),
    ],
)
def test_facts_that_cannot_be_made_say_why(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        facts(**changes)


@pytest.mark.parametrize("wrong", [{"noise_target": "third"}, {"ood_fraction": 0.0}, {"steps": 1}, {"lambda": 3}])
def test_parameters_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        cc.Parameters(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# wording, noise


def test_wordings_by_hand() -> None:
    rows = torch.tensor([[0, 10, 11, 2, 5]])
    chain = cc.worded(rows)
    assert chain.tokens.tolist() == [[0, 10, 11, 2, 5]]
    assert chain.labels.tolist() == [[IGNORED] * 3 + [2, 5]]
    assert cc.worded(rows, "answer").tokens.tolist() == [[0, 10, 11, 5]]
    spoken = cc.worded(rows, "cot", SENTENCE)
    assert spoken.tokens.tolist() == [[13, 11, 14, 0, 0, 15, 2, 16, 11, 2, 5]]
    assert spoken.labels.tolist() == [[IGNORED] * 4 + [0, 15, 2, 16, 11, 2, 5]]
    assert SENTENCE.bridge == 2


@pytest.mark.parametrize(("target", "touched"), [("second", [4]), ("first", [3]), ("both", [3, 4])])
def test_noise_spoils_its_share_and_nothing_else(target: str, touched: list[int]) -> None:
    rows = torch.randint(ENTITIES, (4000, 5), generator=generator())
    before = rows.clone()
    spoilt = cc.worded(rows, noise=0.3, noise_target=target, generator=generator(1)).tokens != rows
    assert torch.equal(rows, before), "the true facts, on which tests are made, stay"
    assert spoilt.any(0).nonzero()[:, 0].tolist() == touched
    assert (spoilt[:, touched].all(1) == spoilt[:, touched].any(1)).all()
    assert spoilt[:, touched[0]].float().mean().item() == pytest.approx(0.3, abs=4 * (0.21 / 4000) ** 0.5)
    # Row by row: that one question with a bridge is spoilt says nothing about the others with the same first hop.
    same_hop = (rows[:, :2] == rows[0, :2]).all(1)
    assert spoilt[same_hop].any(1).float().mean() < 0.6


def test_full_noise_on_the_first_hop_never_writes_the_true_bridge() -> None:
    rows = facts().train
    wrong = cc.worded(rows, noise=1.0, noise_target="first", generator=generator()).tokens
    assert (wrong[:, 3] != rows[:, 3]).all()
    assert torch.equal(wrong[:, 4], rows[:, 4])
    with pytest.raises(ValueError, match="no wrong token"):
        cc.worded(rows[:1], noise=1.0, generator=generator())
    clean = cc.worded(rows, noise=0.0).tokens
    assert torch.equal(clean, rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"supervision": "answr"}, "did you mean 'answer'"),
        ({"noise_target": "frist", "noise": 0.1}, "did you mean 'first'"),
        ({"noise": 1.5}, r"\[0, 1\]"),
        ({"noise": -0.1}, r"\[0, 1\]"),
        ({"noise": float("nan")}, r"\[0, 1\]"),
        ({"noise": 0.5}, "generator"),
    ],
)
def test_wrong_supervision_or_noise_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cc.worded(facts().train, **options)


@pytest.mark.parametrize("chain", [("e3",), ("e2",), ("e3", "e2"), ("e2", "e3", 4)])
def test_a_chain_holds_the_bridge_and_ends_with_the_answer(chain: tuple) -> None:
    with pytest.raises(ValueError, match="bridge"):
        cc.Wording(chain=chain)


# ---------------------------------------------------------------------------------------------------------------------
# scores and training


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_models_own_bridge_is_fed_back(family: str) -> None:
    model, rows = decoder(family), facts().id_test.clone()
    own = choices(model, rows[:, :3])
    half = len(rows) // 2
    rows[:half, 3] = own[:half]
    rows[:, 4] = choices(model, torch.cat([rows[:, :3], own[:, None]], 1))  # right after the model's own bridge
    seen = cc.score(model, rows, "cot")
    assert torch.equal(seen.bridge, own == rows[:, 3])
    assert seen.answer.all()
    assert torch.equal(seen.whole, seen.bridge)
    rows[:, 4] = own
    alone = cc.score(model, rows, "answer")
    assert alone.whole.all()
    assert torch.equal(alone.bridge, alone.answer)
    single = cc.score(model, rows[:1], "cot", SENTENCE)
    assert single.whole.shape == (1,)


def test_training_is_cached_with_its_curves_and_only_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAPERS_THAT_RUN_CACHE", str(tmp_path))
    data, plan = cc.worded(facts().train), Plan(20, 1e-2, 16)

    def frozen_embeddings() -> PreTrainedModel:
        model = decoder()
        model.get_input_embeddings().requires_grad_(False)
        return model

    def loss(model: PreTrainedModel) -> float:
        return cc.completion_loss(model, data).item()

    def teach(sample: object) -> tuple[PreTrainedModel, dict[str, Tensor]]:
        recipe = {"kind": "test of teach", "seed": 5}
        return cc.teach(recipe, frozen_embeddings, sample, plan, {"loss": loss}, [1, 10, 20])  # type: ignore[arg-type]

    model, curves = teach(data.draw)
    assert not model.training
    assert curves["loss"].shape == (3,)
    assert curves["loss"][2] < curves["loss"][0]
    assert curves["loss"][2].item() == pytest.approx(loss(model), rel=1e-4)
    again, same = teach(None)
    assert torch.equal(again(data.tokens).logits, model(data.tokens).logits)
    assert torch.equal(same["loss"], curves["loss"])
    for times in ([], [0], [21]):
        with pytest.raises(ValueError, match="from 1 to 20"):
            cc.teach({}, decoder, data.draw, plan, {"loss": loss}, times)


# ---------------------------------------------------------------------------------------------------------------------
# stage losses


def loop_stages(model: PreTrainedModel, rows: Tensor, bridges: Tensor, wording: cc.Wording) -> list[list[float]]:
    """Marginal, first and second of each row, one sequence at a time."""

    def next_token(template: tuple[str | int, ...], row: Tensor) -> Tensor:
        with torch.no_grad():
            return model(cc.fill(template, row[None])).logits[0, -1].double().softmax(-1)

    found = []
    for row in rows:
        first = next_token(wording.question + wording.chain[: wording.bridge], row)
        total = 0.0
        for bridge in bridges.tolist():
            other = row.clone()
            other[3] = bridge
            total += (first[bridge] * next_token(wording.question + wording.chain[:-1], other)[row[4]]).item()
        second = next_token(wording.question + wording.chain[:-1], row)[row[4]]
        found.append([-np.log(total), -np.log(first[row[3]].item()), -np.log(second.item())])
    return found


@pytest.mark.parametrize("wording", [cc.Wording(), SENTENCE])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_stage_losses_are_those_of_a_loop(family: str, wording: cc.Wording) -> None:
    model, made = decoder(family), facts()
    rows = made.ood_test[:4]
    seen = cc.stagewise_nll(model, rows, made.entities, wording, chunk=7)
    expected = torch.tensor(loop_stages(model, rows, made.entities, wording), dtype=torch.float64).T
    torch.testing.assert_close(torch.stack([seen.marginal, seen.first, seen.second]), expected, rtol=1e-4, atol=1e-5)
    with_true = torch.logaddexp(-seen.without, -seen.first - seen.second)
    torch.testing.assert_close(-with_true, seen.marginal)
    shuffled = cc.stagewise_nll(model, rows, made.entities.flip(0), wording)
    torch.testing.assert_close(shuffled.marginal, seen.marginal, rtol=1e-5, atol=1e-5)
    alone = cc.stagewise_nll(model, rows[:1], made.entities, wording)
    torch.testing.assert_close(alone.second, seen.second[:1], rtol=1e-5, atol=1e-5)


def broken_bounds(stages: cc.StageLosses) -> int:
    """The check of C2."""
    return int((stages.marginal > stages.first + stages.second + 1e-5).sum())


@pytest.mark.mutation("C2")
def test_leaving_the_true_bridge_out_breaks_the_bound() -> None:
    model = decoder(sharpness=4.0)
    for rows in (facts().id_test, confident_rows(model)):
        stages = cc.stagewise_nll(model, rows, facts().entities)
        assert broken_bounds(stages) == 0
    crippled = cc.StageLosses(stages.without, stages.first, stages.second, stages.without)
    assert broken_bounds(crippled) > 0


@pytest.mark.parametrize(
    ("rows", "bridges", "message"),
    [
        (torch.zeros(0, 5, dtype=torch.long), torch.arange(9), "no rows"),
        (torch.tensor([[0, 10, 11, 2, 25]]), torch.arange(9), "too small"),
        (torch.tensor([[0, 10, 11, 2, 5]]), torch.arange(3, 9), "among the candidate"),
        (torch.tensor([[0, 10, 11, 2, 5]]), torch.tensor([2, 2, 3]), "once"),
        (torch.tensor([[0, 10, 11, 2, 5]]), torch.tensor([2, 30]), "too small"),
    ],
)
def test_stage_losses_refuse_what_they_cannot_score(rows: Tensor, bridges: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cc.stagewise_nll(decoder(), rows, bridges)


def test_scores_refuse_rows_beyond_the_vocabulary() -> None:
    with pytest.raises(ValueError, match="vocabulary of 20 tokens is too small"):
        cc.score(decoder(), torch.tensor([[0, 1, 20, 2, 3]]), "cot")
    with pytest.raises(ValueError, match="supervision"):
        cc.score(decoder(), facts().train, "chain")


# ---------------------------------------------------------------------------------------------------------------------
# divergences


def draws(n: int = 200, bridges: int = 3, answers: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(bridges * answers, 0.4), (2, n)).reshape(2, n, bridges, answers)
    return p, q


def broken_inequalities() -> int:
    """The check of C1."""
    of_answer, of_chain = cc.divergences(*draws())
    return int((of_answer > of_chain + 1e-9).sum())


def test_divergences_by_hand_and_by_the_chain_rule() -> None:
    p, q = np.array([[0.5, 0.25], [0.0, 0.25]]), np.array([[0.25, 0.25], [0.25, 0.25]])
    of_answer, of_chain = cc.divergences(p, q)
    assert of_answer == pytest.approx(0.0, abs=1e-12)
    first = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    second = 0.75 * (2 / 3 * np.log(4 / 3) + 1 / 3 * np.log(2 / 3)) + 0.25 * np.log(2)
    assert of_chain == pytest.approx(first + second, rel=1e-12)
    many = draws()
    np.testing.assert_allclose(cc.divergences(*many)[1], rel_entr(*many).sum((-2, -1)), rtol=1e-9)


def test_a_bridge_that_is_a_function_of_the_answer_makes_it_an_equality() -> None:
    rng = np.random.default_rng(1)
    p_y, q_y = rng.dirichlet(np.ones(6), 2)
    bridge = np.eye(3)[rng.integers(3, size=6)].T  # (C, Y), one bridge an answer
    of_answer, of_chain = cc.divergences(bridge * p_y, bridge * q_y)
    assert of_answer == pytest.approx(of_chain, rel=1e-12)
    other = np.roll(bridge, 1, axis=0)
    assert np.isinf(cc.divergences(bridge * p_y, other * q_y)[1])


@pytest.mark.mutation("C1")
def test_leaving_out_the_divergence_of_the_bridges_breaks_the_inequality(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_inequalities() == 0
    monkeypatch.setattr(cc, "rel_entr", lambda p, q: rel_entr(p, q) * (p.shape[-1] > 1))
    assert broken_inequalities() > 0


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (np.full((2, 2), 0.3), "sum to 1"),
        (np.array([[1.5, -0.5]]), "non-negative"),
        (np.array([[np.nan, 1.0]]), "sum to 1"),
        (np.array([0.5, 0.5]), "joint"),
    ],
)
def test_what_is_no_distribution_is_refused(p: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cc.divergences(p, p)
    with pytest.raises(ValueError, match="one shape"):
        cc.divergences(np.full((2, 2), 0.25), np.full((2, 3), 1 / 6))


# ---------------------------------------------------------------------------------------------------------------------
# lens and tracing


def test_the_first_depth_is_that_of_the_mean_reciprocal_rank() -> None:
    ranks = torch.tensor([[9.0, 9.0], [0.0, 1.0], [0.0, 0.0], [5.0, 0.0]])
    assert cc.first_depth(ranks, 0.75) == 1
    assert cc.first_depth(ranks) == 2
    assert cc.first_depth(ranks[:2]) == 2, "never reached: beyond the last"
    with pytest.raises(ValueError, match="depths"):
        cc.first_depth(ranks[0])


def test_partners_agree_and_differ_where_they_should() -> None:
    rows = facts().id_test
    receivers, givers = cc.partners(rows, ["r2"], ["e1", "e2"], generator())
    assert (rows[receivers, 2] == rows[givers, 2]).all()
    assert (rows[receivers] != rows[givers])[:, [0, 3]].all()
    able = [i for i, a in enumerate(rows) if any(a[2] == b[2] and a[0] != b[0] and a[3] != b[3] for b in rows)]
    assert receivers.tolist() == able
    with pytest.raises(ValueError, match="no two"):
        cc.partners(rows[:1], [], ["e1"], generator())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_tracing_at_both_ends_of_the_model(family: str) -> None:
    model = decoder(family)
    receivers, givers = torch.randint(20, (2, 12, 5), generator=generator())
    seen = cc.trace(model, receivers, givers, range(5))
    layers = model.config.num_hidden_layers
    assert seen.shape == (layers + 1, 5, 12)
    for position in range(5):
        swapped = copy.deepcopy(receivers)
        swapped[:, position] = givers[:, position]
        # Positions of GPT-2 are added to the tokens, and are the same in both runs.
        assert torch.equal(seen[0, position], choices(model, swapped))
    assert torch.equal(seen[-1, -1], choices(model, givers)), "the last stream alone makes the choice"
    assert all(torch.equal(row, choices(model, receivers)) for row in seen[-1, :-1]), "the others come too late"
    own = cc.trace(model, receivers, receivers, [2], [1])
    assert torch.equal(own[0, 0], choices(model, receivers))
    assert torch.equal(cc.trace(model, receivers, givers, [3], [2])[0, 0], seen[2, 3])


def test_tracing_refuses_what_does_not_fit() -> None:
    tokens = torch.zeros(3, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="one shape"):
        cc.trace(decoder(), tokens, tokens[:2], [0])
    with pytest.raises(ValueError, match="positions"):
        cc.trace(decoder(), tokens, tokens, [4])
    with pytest.raises(ValueError, match="depth"):
        cc.trace(decoder(), tokens, tokens, [0], [-1])
