"""Tests of lib.methods.icl_denoising_heads on small random decoders of several families."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import HEADS, WIDTH, tiny_decoder
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

import lib.methods.icl_denoising_heads as icl
from lib.batch.errors import NotebookError
from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import ROOT
from lib.bench.record import Record
from lib.bench.run import RECORD_NAME
from lib.methods.icl_denoising_heads import (
    LowRankFilter,
    Parameters,
    Prompts,
    TaskSequenceSampler,
    ablated_states,
    covariance_flux,
    denoising_heads,
    draw_demonstrations,
    eccentricity,
    encode_prompts,
    fit_low_rank_filters,
    induction_magnitude,
    observe,
    predictions,
    screen_heads,
    tail_logits,
)
from lib.substrates.heads import scale_heads
from lib.substrates.hooks import Site, capture

LAYERS, VOCABULARY, CONTEXT = 3, 19, 16
SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
FAMILIES: dict[str, dict[str, Any]] = {"gpt2": {}, "llama": {}, "qwen2": SLIDING, "neox": {}}
EVERY_HEAD = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(family: str) -> Any:
    return tiny_decoder(family, vocabulary=VOCABULARY, context=CONTEXT, **FAMILIES[family])


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture
def llama() -> Any:
    return build("llama").double()


def some_prompts(n: int = 5, growth: int = 1) -> Prompts:
    """Prompts of lengths 9, 9 + growth, ... with two labels each."""
    lengths = 9 + growth * torch.arange(n)
    size = int(lengths.max())
    mask = (torch.arange(size) >= size - lengths[:, None]).long()
    tokens = torch.randint(1, VOCABULARY, (n, size), generator=generator(1)) * mask
    targets = torch.randint(1, VOCABULARY, (n,), generator=generator(2))
    return Prompts(tokens, mask, targets, size - torch.tensor([[7, 3]] * n))


def states(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64) * torch.linspace(0.2, 2, shape[-1])


def alone(prompts: Prompts, row: int) -> Tensor:
    return prompts.tokens[row][prompts.mask[row].bool()][None]


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# one pass


def test_one_pass_sees_what_separate_unpadded_runs_see(model: Any) -> None:
    prompts = some_prompts()
    seen = observe(model, prompts, budget=30)
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    for row in range(len(prompts)):
        ids = alone(prompts, row)
        with capture(twin, [Site("head_out", 1), Site("attn_out", 2), Site("final_resid")]) as sites:
            output = twin(ids, output_hidden_states=True, output_attentions=True)
        close(seen.states[:LAYERS, row], torch.stack(output.hidden_states)[:LAYERS, 0, -1])
        close(seen.states[LAYERS, row], sites[Site("final_resid")][0, -1])
        close(seen.heads[1, row], sites[Site("head_out", 1)][0, -1])
        close(seen.attention[2, row], sites[Site("attn_out", 2)][0, -1])
        weights = torch.stack(output.attentions)[:, 0, :, -1]
        close(seen.to_labels[:, row], weights[..., [-7, -3]])
        assert seen.predictions[row] == output.logits[0, -1].argmax()
    batch_of_one = observe(model, prompts[torch.tensor([2])])
    close(batch_of_one.states[:, 0], seen.states[:, 2])


def test_induction_magnitude_is_the_mean_of_sums_and_correctness_counts_right_labels_only() -> None:
    prompts, to_labels = some_prompts(), torch.rand(LAYERS, 5, HEADS, 2, generator=generator())
    right = prompts.demo_labels == prompts.targets[:, None]
    right[0, 1] = True
    for layer, head in EVERY_HEAD:
        rows = to_labels[layer, :, head]
        assert induction_magnitude(to_labels)[layer, head].item() == pytest.approx(
            sum(float(row.sum()) for row in rows) / 5
        )
        assert induction_magnitude(to_labels, right)[layer, head].item() == pytest.approx(
            sum(float(w) for row, ok in zip(rows, right, strict=True) for w, o in zip(row, ok, strict=True) if o) / 5
        )


def test_the_model_is_left_as_it_was_also_after_an_error(model: Any) -> None:
    before, gradients = copy.deepcopy(model.state_dict()), [p.grad for p in model.parameters()]
    prompts, implementation = some_prompts(), model.config._attn_implementation
    kinds = copy.copy(getattr(model.config, "layer_types", None))
    clean = model(prompts.tokens).logits
    broken = Prompts(prompts.tokens + VOCABULARY, prompts.mask, prompts.targets, prompts.label_positions)
    for call in (
        lambda p: observe(model, p),
        lambda p: predictions(model, p, [[(1, 0)]]),
        lambda p: predictions(model, p, [[(1, 0)]], last_token_only=True),
    ):
        call(prompts)
        with pytest.raises(IndexError):
            call(broken)
    seen = observe(model, prompts)
    fit_low_rank_filters(model, 1, seen.states[1], prompts.targets, [2], rate=1e-2, epochs=2, generator=generator())
    with pytest.raises(IndexError):
        fit_low_rank_filters(
            model, 1, seen.states[1], prompts.targets + VOCABULARY, [2], rate=1e-2, epochs=1, generator=generator()
        )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.grad for p in model.parameters()] == gradients
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model.config._attn_implementation == implementation
    assert getattr(model.config, "layer_types", None) == kinds
    assert torch.equal(model(prompts.tokens).logits, clean)


# ---------------------------------------------------------------------------------------------------------------------
# the tail, heads off


def test_a_token_that_is_alone_gets_its_own_logits_from_every_depth(model: Any) -> None:
    ids = torch.randint(1, VOCABULARY, (4, 1), generator=generator(3))
    prompts = Prompts(ids, torch.ones_like(ids), ids[:, 0], torch.zeros(4, 0, dtype=torch.long))
    seen, expected = observe(model, prompts), model(ids).logits[:, 0]
    for depth in range(LAYERS + 1):
        close(tail_logits(model, seen.states[depth], depth), expected)
        close(tail_logits(model, seen.states[depth][None, :, None], depth)[0, :, 0], expected)


def test_the_tail_sees_no_earlier_position_and_is_differentiable(model: Any) -> None:
    prompts, model = some_prompts(growth=0), model.double()
    seen = observe(model, prompts)
    cut = tail_logits(model, seen.states[1], 1)
    assert not torch.allclose(cut, model(**prompts.inputs).logits[:, -1], atol=1e-3)
    start = seen.states[1].clone().requires_grad_()
    direction = states(*start.shape, seed=4)
    (gradient,) = torch.autograd.grad(tail_logits(model, start, 1).logsumexp(-1).sum(), start)
    with torch.no_grad():
        ends = [tail_logits(model, start + h * direction, 1).logsumexp(-1).sum() for h in (1e-3, -1e-3)]
    # RMSNorm of these families works in single precision inside.
    assert (gradient * direction).sum().item() == pytest.approx(float(ends[0] - ends[1]) / 2e-3, rel=1e-2)


@pytest.mark.parametrize("position", [None, -1])
def test_screening_is_exact_at_the_cost_of_one_block(model: Any, position: int | None) -> None:
    """The states after the block are those of whole runs, with the head off at all positions or at the last."""
    prompts, model = some_prompts(growth=0), model.double()
    seen = observe(model, prompts)
    for layer in range(LAYERS):
        fast = ablated_states(model, seen, layer)
        for head in range(HEADS):
            with scale_heads(model, [(layer, head)], 0.0, position=position):
                slow = observe(model, prompts).states[layer + 1]
            torch.testing.assert_close(fast[head], slow, rtol=1e-9, atol=1e-9)


def test_screening_gives_relative_changes_averaged_over_filters(llama: Any) -> None:
    prompts = some_prompts(growth=0)
    seen = observe(llama, prompts)
    filters = {2: [LowRankFilter(WIDTH, 3, generator(i)).double() for i in range(2)]}
    spread, flux = screen_heads(llama, seen, filters)
    off, on = ablated_states(llama, seen, 1)[2], seen.states[2]
    assert spread[1, 2].item() == pytest.approx((eccentricity(off) / eccentricity(on) - 1).item())
    changes = [(covariance_flux(off, one) / covariance_flux(on, one) - 1).item() for one in filters[2]]
    assert flux[1, 2].item() == pytest.approx(sum(changes) / 2)
    assert flux[[0, 2]].isnan().all()
    magnitude = torch.zeros_like(flux)
    magnitude[1, 2] = 0.36
    low = flux.clone()
    low[1] = -0.06
    assert denoising_heads(low, magnitude, -0.05, 0.35) == [(1, 0), (1, 1), (1, 3)]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("factor", [0.0, 1.1])
def test_predictions_with_heads_scaled_are_those_of_whole_runs(model: Any, last: bool, factor: float) -> None:
    prompts = some_prompts()
    sets = [[], [(0, 1)], [(1, 2), (2, 0)], [(2, 3)], EVERY_HEAD]
    fast = predictions(model, prompts, sets, factor, last_token_only=last, budget=25)
    for row, heads in zip(fast, sets, strict=True):
        for index in range(len(prompts)):
            if heads:
                with scale_heads(model, heads, factor, position=-1 if last else None):
                    slow = model(alone(prompts, index)).logits[0, -1].argmax()
            else:
                slow = model(alone(prompts, index)).logits[0, -1].argmax()
            assert row[index] == slow


def test_hooks_on_the_model_act_in_its_tail(llama: Any) -> None:
    start = states(3, WIDTH)
    clean = tail_logits(llama, start, 1)
    with scale_heads(llama, [(0, 1)], 0.0):
        assert torch.equal(tail_logits(llama, start, 1), clean), "a block that does not run"
    with scale_heads(llama, [(2, 1)], 0.0):
        assert not torch.allclose(tail_logits(llama, start, 1), clean)


# ---------------------------------------------------------------------------------------------------------------------
# filters


def test_filters_trained_side_by_side_come_out_as_if_alone(llama: Any) -> None:
    given, targets = states(6, WIDTH), torch.tensor([1, 2, 1, 2, 1, 2])
    options = {"rate": 3e-2, "epochs": 5, "batch_size": 6}
    both = fit_low_rank_filters(llama, 1, given, targets, [2, 5], generator=generator(), **options)
    one = fit_low_rank_filters(llama, 1, given, targets, [2], generator=generator(), **options)[0]
    torch.testing.assert_close(both[0].matrix, one.matrix)
    torch.testing.assert_close(both[0].bias, one.bias)
    assert both[1].encoder.shape == (5, WIDTH)
    separate = fit_low_rank_filters(
        llama, 1, given.expand(2, 6, WIDTH), targets.expand(2, 6), [2, 5], generator=generator(), **options
    )
    torch.testing.assert_close(separate[1].matrix, both[1].matrix)


def test_a_filter_is_trained_by_the_gradient_of_the_cross_entropy_alone(llama: Any) -> None:
    """One step of Adam moves every weight by the rate, against the sign of its gradient, on the scaled states."""
    given, targets = states(6, WIDTH), torch.tensor([1, 2, 1, 2, 1, 2])
    first = LowRankFilter(WIDTH, 3, generator()).double()
    for parameter in first.parameters():
        parameter.requires_grad_()
    loss = nn.functional.cross_entropy(tail_logits(llama, first(given / given.std()), 1), targets)
    loss.backward(inputs=list(first.parameters()))
    after = fit_low_rank_filters(
        llama, 1, given, targets, [3], rate=1e-3, epochs=1, batch_size=6, generator=generator()
    )[0]
    for name, moved in {"encoder": after.encoder * given.std(), "bias": after.bias, "decoder": after.decoder}.items():
        start = getattr(first, name)
        torch.testing.assert_close(moved, start.detach() - 1e-3 * start.grad.sign(), rtol=0, atol=1e-5)


def test_a_filter_learns_and_each_half_can_be_trained_alone(llama: Any) -> None:
    given, targets = states(8, WIDTH), torch.tensor([1, 2, 3, 4] * 2)

    def loss(one: LowRankFilter) -> float:
        return nn.functional.cross_entropy(tail_logits(llama, one(given), 1), targets).item()

    first = LowRankFilter(WIDTH, 6, generator()).double()
    start = nn.functional.cross_entropy(tail_logits(llama, first(given / given.std()), 1), targets).item()
    options = {"rate": 3e-2, "epochs": 60, "batch_size": 3}
    for trained in ("both", "encoder", "decoder"):
        (one,) = fit_low_rank_filters(llama, 1, given, targets, [6], generator=generator(), trained=trained, **options)
        assert loss(one) < (0.3 if trained == "both" else 0.8) * start
        assert torch.equal(one.decoder, first.decoder) is (trained == "encoder")
        same = torch.allclose(one.encoder * given.std(), first.encoder, rtol=1e-9)
        assert same is (trained == "decoder")
        assert not any(parameter.requires_grad for parameter in one.parameters())


def test_rank_zero_is_a_constant_state(llama: Any) -> None:
    (one,) = fit_low_rank_filters(
        llama, 1, states(4, WIDTH), torch.arange(4), [0], rate=1e-2, epochs=1, generator=generator()
    )
    assert torch.equal(one(states(5, WIDTH, seed=3)), torch.zeros(5, WIDTH, dtype=torch.float64))


def centred_rank(filtered: Tensor) -> int:
    singular = torch.linalg.svdvals(filtered - filtered.mean(-2, keepdim=True))
    return int((singular > 1e-5 * singular[0]).sum())


def test_filtered_states_have_the_rank_of_the_filter() -> None:
    for rank in (1, 3, WIDTH):
        assert centred_rank(LowRankFilter(WIDTH, rank, generator()).double()(states(60, WIDTH))) == rank


@pytest.mark.mutation("C7")
def test_a_residual_connection_breaks_the_rank_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LowRankFilter.forward
    monkeypatch.setattr(LowRankFilter, "forward", lambda self, h: h + plain(self, h))
    assert centred_rank(LowRankFilter(WIDTH, 3, generator()).double()(states(60, WIDTH))) > 3


# ---------------------------------------------------------------------------------------------------------------------
# metrics


def flux_identities(H: Tensor, rank: int) -> bool:
    """C6 on states (N, d): trace, identity, projectors, and the share of variance of the principal axes."""
    d, matrix = H.shape[-1], LowRankFilter(H.shape[-1], rank, generator(7)).double().matrix
    covariance, filtered = torch.cov(H.T), torch.cov((H @ matrix.T).T)
    by_singular_values = torch.linalg.svdvals(filtered).sum() / torch.linalg.svdvals(covariance).sum()
    axes = torch.linalg.svd(H - H.mean(0)).Vh[:rank]
    ratios = torch.linalg.eigvalsh(covariance).flip(0)
    random = torch.linalg.qr(states(d, rank, seed=5)).Q
    return all(
        [
            torch.isclose(icl.covariance_flux(H, matrix), by_singular_values, rtol=1e-6),
            torch.isclose(icl.covariance_flux(H, torch.eye(d).double()), torch.tensor(1.0).double(), rtol=1e-6),
            torch.isclose(icl.covariance_flux(H, axes.T @ axes), ratios[:rank].sum() / ratios.sum(), rtol=1e-6),
            torch.isclose(icl.eccentricity(H), ratios[0] / ratios.sum(), rtol=1e-6),
            0 <= icl.covariance_flux(H, random @ random.T) <= 1,
        ]
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 40), st.integers(2, 12), st.integers(0, 99))
def test_the_flux_identities_hold(n: int, d: int, seed: int) -> None:
    assert flux_identities(states(n, d, seed=seed) + 3, rank=max(1, d // 2))


@pytest.mark.mutation("C6")
def test_without_centring_the_flux_identities_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icl, "_centred", lambda H: H)
    assert not flux_identities(states(30, 8) + 3, rank=4)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10), st.floats(-5, 5), st.integers(0, 99))
def test_metrics_do_not_see_scale_shift_rotation_or_order(factor: float, shift: float, seed: int) -> None:
    H, turn = states(15, 6, seed=seed), torch.linalg.qr(states(6, 6, seed=seed + 1)).Q
    moved = (factor * H + shift)[torch.randperm(15, generator=generator(seed))] @ turn
    torch.testing.assert_close(eccentricity(moved), eccentricity(H))
    matrix = states(6, 6, seed=seed + 2)
    torch.testing.assert_close(covariance_flux(moved, turn.T @ matrix @ turn), covariance_flux(H, matrix))
    batch = torch.stack([H, moved])
    torch.testing.assert_close(eccentricity(batch), torch.stack([eccentricity(H)] * 2))
    assert covariance_flux(batch, matrix).shape == (2,)


# ---------------------------------------------------------------------------------------------------------------------
# prompts


@pytest.mark.parametrize("separator", [True, False])
@pytest.mark.parametrize("draw", ["any", "seen", "unseen"])
def test_sampled_prompts_say_what_the_task_says(separator: bool, draw: Any) -> None:
    sampler = TaskSequenceSampler(30, 2, 3, 5, separator, generator())
    queries = torch.arange(30)
    prompts = sampler.sample(1, queries, 4, generator(1), draw)
    for row, query in enumerate(queries.tolist()):
        tokens = prompts.tokens[row].tolist()
        assert tokens[-1 - separator] == query
        assert tokens[-1] == (35 if separator else query)
        shown = prompts.label_positions[row].tolist()
        entities = [tokens[place - 1 - separator] for place in shown]
        assert len({query, *entities}) == 5, "distinct, and never the query"
        assert [tokens[place] for place in shown] == [int(sampler.labels[1, entity]) for entity in entities]
        assert all(tokens[place + 1] == 36 for place in shown)
    agreement = prompts.demo_labels == prompts.targets[:, None]
    assert torch.equal(prompts.seen, agreement.any(1))
    assert {"any": True, "seen": bool(agreement.all()), "unseen": not agreement.any()}[draw]
    assert sampler.labels.unique().tolist() == sorted(set(sampler.labels.flatten().tolist()))
    assert [len(labels.unique()) for labels in sampler.labels] == [3, 3]
    assert {int((labels == word).sum()) for labels in sampler.labels for word in labels.unique()} == {10}


def test_noise_words_stand_in_place_of_labels_and_say_nothing_of_the_task() -> None:
    sampler = TaskSequenceSampler(30, 2, 3, 5, True, generator())
    queries = torch.arange(30)
    prompts = sampler.sample(0, queries, 4, generator(1), noise=sampler.pool)
    assert set(prompts.demo_labels.flatten().tolist()) == set(range(30, 35))
    assert torch.equal(prompts.targets, sampler.labels[0, queries])


def test_draws_differ_by_seed_only() -> None:
    pool, queries = torch.arange(20) % 2, torch.zeros(8, dtype=torch.long)
    one, same, other = (draw_demonstrations(pool, queries, 5, "any", generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert all(len(set(row.tolist())) == 5 for row in one)


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = [
        "Review: good one\nSentiment: positive\n",
        "Review: bad\nSentiment: negative\n",
        " table seven north green A B",
    ] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


TEMPLATE, WORDS = "Review: {text}\nSentiment:", [" positive", " negative"]
QUERIES = [("good", 0), ("a much longer review", 1)]
DEMOS = [[("bad", 1), ("fine", 0)], [("one", 0), ("two", 0)]]


@pytest.mark.parametrize("special", [{}, {"eos_token": "<end>"}, {"pad_token": "<end>"}])
def test_encoded_prompts_are_the_text_and_know_where_labels_lie(special: dict[str, str]) -> None:
    coder = tokenizer(**special)
    prompts = encode_prompts(coder, TEMPLATE, QUERIES, DEMOS, WORDS, "Judge.\n")
    text = (
        "Judge.\n"
        + "".join(TEMPLATE.format(text=t) + WORDS[y] + "\n" for t, y in DEMOS[0])
        + TEMPLATE.format(text="good")
    )
    assert alone(prompts, 0)[0].tolist() == coder(text).input_ids
    first = [coder(word).input_ids[0] for word in WORDS]
    assert prompts.demo_labels.tolist() == [[first[y] for _, y in demos] for demos in DEMOS]
    assert prompts.targets.tolist() == [first[0], first[1]]
    assert prompts.seen.tolist() == [True, False]
    assert prompts.mask[:, -1].tolist() == [1, 1], "padding is on the left"
    zero = encode_prompts(coder, TEMPLATE, QUERIES, [[], []], WORDS)
    assert zero.label_positions.shape == (2, 0)
    assert zero[torch.tensor([0])].tokens.shape[1] == int(zero.mask[0].sum())


# ---------------------------------------------------------------------------------------------------------------------
# bad input


def test_bad_prompts_say_what_is_wrong(llama: Any) -> None:
    coder, empty = tokenizer(), torch.zeros(0, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="no prompts"):
        Prompts(empty, empty, empty[:, 0], empty)
    with pytest.raises(ValueError, match="must be"):
        Prompts(empty.new_ones(2, 3), empty.new_ones(2, 4), empty.new_ones(2), empty.new_ones(2, 0))
    with pytest.raises(ValueError, match="at least one query"):
        encode_prompts(coder, TEMPLATE, [], [], WORDS)
    with pytest.raises(ValueError, match="same number"):
        encode_prompts(coder, TEMPLATE, QUERIES, [[], [("x", 0)]], WORDS)
    with pytest.raises(ValueError, match="apart by their first"):
        encode_prompts(coder, TEMPLATE, QUERIES, [[], []], [" positive", " positive!"])
    with pytest.raises(ValueError, match="fast version"):
        encode_prompts(SimpleNamespace(is_fast=False), TEMPLATE, QUERIES, [[], []], WORDS)  # type: ignore[arg-type]
    ids = torch.ones(2, CONTEXT + 1, dtype=torch.long)
    long = Prompts(ids, ids, ids[:, 0], ids[:, :0])
    for call in (lambda: observe(llama, long), lambda: predictions(llama, long, [[]])):
        with pytest.raises(ValueError, match="context"):
            call()
    with pytest.raises(ValueError, match="double precision"):
        observe(llama, some_prompts())
    with pytest.raises(ValueError, match="did you mean 'unseen'"):
        draw_demonstrations(torch.arange(4), torch.arange(2), 1, "unsen", generator())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only 1"):
        draw_demonstrations(torch.arange(4), torch.arange(2), 2, "seen", generator())
    with pytest.raises(ValueError, match="n_labels"):
        TaskSequenceSampler(10, 2, 6, 5, True, generator())


def test_heads_layers_and_depths_that_do_not_exist_are_named(llama: Any) -> None:
    prompts = some_prompts(growth=0)
    seen = observe(llama, prompts)
    for heads in ([(LAYERS, 0)], [(0, HEADS)], [(-1, 0)]):
        with pytest.raises(ValueError, match="no head"):
            predictions(llama, prompts, [heads])
    with pytest.raises(ValueError, match="no head"):
        ablated_states(llama, seen, LAYERS)
    for depth in (-1, LAYERS + 1):
        with pytest.raises(ValueError, match="depths 0 to 3"):
            tail_logits(llama, seen.states[0], depth)
    with pytest.raises(ValueError, match="known family"):
        tail_logits(nn.Linear(2, 2), seen.states[0], 1)


def test_bad_states_and_ranks_are_refused(llama: Any) -> None:
    good, targets = states(4, WIDTH), torch.arange(4)
    bad = good.clone()
    bad[1, 1] = float("nan")

    def fit(given: Tensor, ranks: list[int], **options: Any) -> None:
        fit_low_rank_filters(llama, 1, given, targets, ranks, rate=1e-2, epochs=1, generator=generator(), **options)

    for call in (eccentricity, lambda H: covariance_flux(H, torch.eye(WIDTH).double()), lambda H: fit(H, [1])):
        with pytest.raises(ValueError, match="finite"):
            call(bad)
        with pytest.raises(ValueError, match="N at least 2"):
            call(good[:1])
        with pytest.raises(ValueError, match="all states are equal"):
            call(torch.ones_like(good))
    for rank in (-1, WIDTH + 1):
        with pytest.raises(ValueError, match=f"0..{WIDTH}, the width"):
            fit(good, [rank])
    with pytest.raises(ValueError, match="at least one filter"):
        fit(good, [])
    with pytest.raises(ValueError, match="did you mean 'encoder'"):
        fit(good, [1], trained="encoders")


def test_parameters_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="extra"):
        Parameters(layers=3)
    with pytest.raises(ValueError, match="less than"):
        Parameters(cf_threshold=0.1)


# ---------------------------------------------------------------------------------------------------------------------
# the notebook at full scale, on a checkpoint small enough for a test


@pytest.mark.slow
def test_the_full_preset_reads_a_checkpoint_from_a_folder(tmp_path: Path) -> None:
    coder = tokenizer(eos_token="<end>")
    tiny_decoder(vocabulary=len(coder), context=1024).save_pretrained(tmp_path / "model")
    coder.save_pretrained(tmp_path / "model")
    small = {"calibration": 16, "held_out": 16, "prompts": 16, "ablation_prompts": 8, "shots": [0, 1, 2], "k_eval": 2}
    small |= {
        "filter_ranks": [1, 8],
        "filter_depths": [1, 3],
        "filter_epochs": 1,
        "flux_epochs": 1,
        "n_random_draws": 2,
    }
    notebook = read_script(ROOT / "notebooks" / "icl_denoising_heads.py")
    # A random model knows no label, with demonstrations or without: the control passes the rule.
    with pytest.raises(NotebookError, match="C1a"):
        execute(
            notebook, tmp_path / "run", {"preset": "full", "model": str(tmp_path / "model"), "device": "cpu"} | small
        )
    verdicts = {claim.id: claim.verdict for claim in Record.read(tmp_path / "run" / RECORD_NAME).claims}
    assert verdicts["C6"] == verdicts["C7"] == "holds"
    assert verdicts["C1b"] == verdicts["C1c"] == "not evaluated"
