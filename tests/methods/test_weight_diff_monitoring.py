"""Tests of lib.methods.weight_diff_monitoring on tiny random decoders."""

import copy
import math
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import every_family, everything, generator, letters_tokenizer, tiny_decoder, token_ids
from torch import Tensor, nn
from transformers import PreTrainedModel

import lib.methods.weight_diff_monitoring as wd
from lib.batch.errors import NotebookError
from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import ROOT
from lib.bench.record import Record
from lib.bench.run import RECORD_NAME
from lib.substrates.architecture import architecture
from lib.substrates.conversations import respond
from lib.substrates.hooks import Site, capture
from lib.substrates.models import load_language_model


def normal_extremes(n: int, t: int = 3, seed: int = 0) -> wd.Extremes:
    low, high = torch.randn(2, n, 2, t, generator=generator(seed), dtype=torch.float64).sort(0).values
    return wd.Extremes(low, high)


def writers(model: nn.Module, layer: int) -> dict[str, Tensor]:
    """The two writing matrices as (d, d_in), found by name and orientation, independently of the method."""
    parts = architecture(model)
    modules = {"attn_out": parts.projections[layer], "mlp_down": parts.mlp_downs[layer]}
    return {
        name: (module.weight if isinstance(module, nn.Linear) else module.weight.T) for name, module in modules.items()
    }


# ---------------------------------------------------------------------------------------------------------------------
# directions


@every_family
def test_directions_are_the_left_singular_vectors_of_the_difference(family: str) -> None:
    post, base = tiny_decoder(family, 1), tiny_decoder(family, 0)
    found = wd.weight_diff_directions(post, base, 3)
    assert found.labels == [(at, m, i) for at in range(3) for m in wd.MATRICES for i in range(3)]
    for entry in found.entries:
        change = (writers(post, entry.layer)[entry.matrix] - writers(base, entry.layer)[entry.matrix]).detach()
        assert change.shape[0] == 16
        torch.testing.assert_close(entry.vectors.T @ entry.vectors, torch.eye(3), rtol=0, atol=1e-5)
        gram = change @ change.T  # an independent route to left singular vectors
        torch.testing.assert_close(gram @ entry.vectors, entry.vectors * entry.values**2, rtol=1e-3, atol=1e-3)
        assert entry.values[0] == pytest.approx(torch.linalg.matrix_norm(change, 2).item(), rel=1e-5)


@every_family
def test_a_planted_rank_one_change_is_read_back(family: str) -> None:
    base, written = tiny_decoder(family), torch.zeros(16)
    written[5] = -1.0
    post = copy.deepcopy(base)
    with torch.no_grad():
        writers(post, 1)["mlp_down"].add_(0.5 * torch.outer(written, torch.ones(20)))
    found = wd.weight_diff_directions(post, base, 1)
    assert found.labels == [(1, "mlp_down", 0)], "matrices that did not change are left out"
    torch.testing.assert_close(found.entries[0].vectors[:, 0], -written, rtol=0, atol=1e-5)
    assert found.entries[0].values[0] == pytest.approx(0.5 * 20**0.5, rel=1e-5)
    with pytest.raises(ValueError, match="has rank 1: lower k"):
        wd.weight_diff_directions(post, base, 2)


def test_bottom_directions_are_the_last_above_rounding() -> None:
    base = tiny_decoder()
    post = copy.deepcopy(base)
    with torch.no_grad():
        weight = writers(post, 0)["attn_out"]
        weight.add_(torch.randn(16, 4, generator=generator()) @ torch.randn(4, 16, generator=generator(1)) * 0.1)
    top, bottom = (wd.weight_diff_directions(post, base, 4, end=end).entries[0] for end in ("top", "bottom"))
    torch.testing.assert_close(top.values, bottom.values.flip(0))
    torch.testing.assert_close(top.vectors, bottom.vectors.flip(1))


def test_raw_directions_need_no_base_and_layers_can_be_chosen() -> None:
    post = tiny_decoder()
    raw = wd.weight_diff_directions(post, None, 2, layers=[0, 2])
    assert list(raw.by_layer()) == [0, 2]
    weight = writers(post, 2)["attn_out"].detach()
    assert raw.entries[2].values[0] == pytest.approx(torch.linalg.matrix_norm(weight, 2).item(), rel=1e-5)


def test_sets_slice_and_name_their_columns() -> None:
    found = wd.weight_diff_directions(tiny_decoder(seed=1), tiny_decoder(), 4)
    assert found.first(2).labels == [found.labels[j] for j in found.columns(2)]
    torch.testing.assert_close(found.first(2).by_layer()[1], found.by_layer()[1][:, [0, 1, 4, 5]])
    drawn = wd.random_directions(found, generator())
    assert drawn.labels == found.labels
    for entry in drawn.entries:
        torch.testing.assert_close(entry.vectors.T @ entry.vectors, torch.eye(4), rtol=0, atol=1e-5)
    own = wd.given_directions({1: 3 * torch.eye(16)[:, :2]})
    torch.testing.assert_close(own.by_layer()[1], torch.eye(16)[:, :2])
    with pytest.raises(ValueError, match="at least one"):
        wd.DirectionSet([])


def test_what_is_not_a_pair_is_refused() -> None:
    base = tiny_decoder()
    with pytest.raises(ValueError, match="same weights"):
        wd.weight_diff_directions(copy.deepcopy(base), base, 1)
    with pytest.raises(ValueError, match="4 and 3 layers"):
        wd.weight_diff_directions(tiny_decoder(layers=4), base, 1)
    with pytest.raises(ValueError, match="its own base"):
        wd.weight_diff_directions(tiny_decoder("qwen3"), base, 1)
    with pytest.raises(ValueError, match="lower k"):
        wd.weight_diff_directions(tiny_decoder(seed=1), base, 17)
    with pytest.raises(ValueError, match="writes to the residual"):
        wd.weight_diff_directions(tiny_decoder(seed=1), base, 1, ["q_proj"])
    with pytest.raises(ValueError, match="layers 0 to 2"):
        wd.weight_diff_directions(tiny_decoder(seed=1), base, 1, layers=[3])
    broken = tiny_decoder(seed=1)
    with torch.no_grad():
        writers(broken, 0)["attn_out"][0, 0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinite weights"):
        wd.weight_diff_directions(broken, base, 1)


@every_family
def test_adapters_are_merged_first(family: str) -> None:
    peft = pytest.importorskip("peft")
    base = tiny_decoder(family)
    writing = {"gpt2": ["attn.c_proj", "mlp.c_proj"], "neox": ["attention.dense", "dense_4h_to_h"]}
    names = writing.get(family.split()[0], ["o_proj", "down_proj"])
    options = {"r": 2, "target_modules": names, "init_lora_weights": False, "fan_in_fan_out": family == "gpt2"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**options))
    with pytest.raises(ValueError, match="merge"):
        wd.weight_diff_directions(adapted, base, 1)
    merged = adapted.merge_and_unload()
    assert len(wd.weight_diff_directions(merged, base, 2)) == 2 * 2 * 3
    with pytest.raises(ValueError, match="rank 2"):
        wd.weight_diff_directions(merged, base, 3)


# ---------------------------------------------------------------------------------------------------------------------
# watching


@every_family
def test_padding_changes_neither_reply_nor_cosines(family: str) -> None:
    model, prompt = tiny_decoder(family), token_ids(1, 5)
    directions = wd.weight_diff_directions(model, tiny_decoder(family, 1), 2)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), prompt], dim=1)
    mask = torch.arange(8)[None] >= 3
    seen = []
    for tokens, real in ((prompt, everything(prompt)), (padded, mask)):
        with wd.watch(model, directions) as log:
            said = respond(model, tokens, real, 4)
        whole = torch.cat([real, everything(said[:, -3:])], dim=1)
        seen.append((said[:, -4:], wd.extremes(log.cosines, wd.segments(whole, tokens.shape[1], 1))))
    assert torch.equal(seen[0][0], seen[1][0])
    torch.testing.assert_close(seen[0][1].low, seen[1][1].low, rtol=0, atol=1e-4)


@every_family
def test_watching_sees_the_stream_after_each_block_and_changes_nothing(family: str) -> None:
    model, tokens = tiny_decoder(family), token_ids(3, 7)
    directions = wd.weight_diff_directions(model, tiny_decoder(family, 1), 2)
    sites = {layer: Site("resid_post", layer) for layer in range(3)}
    with torch.no_grad(), capture(model, sites.values()) as seen:
        before = model(tokens).logits
    with torch.no_grad(), wd.watch(model, directions) as log, wd.watch(model, directions.first(1)) as twin:
        assert torch.equal(model(tokens).logits, before)
    h, label, column = seen[sites[2]], (2, "mlp_down", 1), log.cosines[..., directions.labels.index((2, "mlp_down", 1))]
    u = next(e for e in directions.entries if (e.layer, e.matrix) == label[:2]).vectors[:, 1]
    torch.testing.assert_close(column, nn.functional.cosine_similarity(h, u.expand_as(h), dim=-1))
    assert torch.equal(twin.cosines, log.cosines[..., directions.columns(1)])
    with torch.no_grad(), wd.watch(model, directions) as one:
        model(tokens[:1])
    torch.testing.assert_close(one.cosines, log.cosines[:1], rtol=1e-4, atol=1e-5)
    with wd.watch(model, directions) as empty, pytest.raises(ValueError, match="run the model"):
        _ = empty.cosines


def test_extremes_by_hand_and_bad_states() -> None:
    seen = torch.tensor([[0.9, -0.1, 0.3, 0.2, -0.5]])[..., None]
    kinds = wd.segments(torch.tensor([[False, True, True, True, True]]), prompt_length=3, min_position=1)
    assert kinds.tolist() == [[-1, -1, 0, 1, 1]]
    found = wd.extremes(seen, kinds)
    assert found.low[0, :, 0].tolist() == pytest.approx([0.3, -0.5])
    assert found.high[0, :, 0].tolist() == pytest.approx([0.3, 0.2])
    seen[0, 0] = math.nan
    assert wd.extremes(seen, kinds).high.isfinite().all(), "what is ignored may be anything"
    seen[0, 4] = math.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        wd.extremes(seen, kinds)
    with pytest.raises(ValueError, match="do not fit"):
        wd.extremes(seen, kinds[:, :3])


def test_a_model_with_nan_states_is_reported() -> None:
    model, tokens = tiny_decoder(), token_ids(2, 6)
    directions = wd.weight_diff_directions(model, tiny_decoder(seed=1), 1)
    with torch.no_grad():
        architecture(model).embedding.weight[tokens[0, 2]] = math.nan
        with wd.watch(model, directions) as log:
            model(tokens)
    with pytest.raises(ValueError, match="hidden states are NaN"):
        wd.extremes(log.cosines, wd.segments(everything(tokens), 4))


@settings(max_examples=30, deadline=None)
@given(st.integers(40, 60), st.integers(1, 4), st.floats(0, 0.5), st.integers(0, 99))
def test_flags_are_those_of_a_loop_over_ranges(n: int, t: int, eps: float, seed: int) -> None:
    calibration, new = normal_extremes(n, t, seed), normal_extremes(20, t, seed + 1000)
    monitor = wd.CosineRangeMonitor(t, eps).calibrate(calibration)
    for row in range(20):
        flagged = False
        for segment in range(2):
            for j in range(t):
                low, high = calibration.low[:, segment, j].min(), calibration.high[:, segment, j].max()
                flagged |= bool(new.low[row, segment, j] < low - eps) or bool(new.high[row, segment, j] > high + eps)
        assert monitor.flag(new)[row] == flagged
    order = torch.randperm(n, generator=generator(seed))
    assert torch.equal(wd.CosineRangeMonitor(t, eps).calibrate(calibration[order]).flag(new), monitor.flag(new))
    assert not monitor.flag(calibration).any()


def test_trimming_drops_a_share_at_both_ends() -> None:
    values = torch.arange(100.0)[:, None, None].expand(-1, 2, 1)
    low, high = wd.CosineRangeMonitor(1).calibrate(wd.Extremes(values, values), trim=0.05).range
    assert (low.unique().item(), high.unique().item()) == (5, 94)


def test_streaming_reports_at_first_sight_only() -> None:
    calibration = wd.Extremes(torch.full((10, 1, 1), -0.1), torch.full((10, 1, 1), 0.1))
    monitor = wd.CosineRangeMonitor(1, 0.01).calibrate(calibration)
    high = torch.tensor([0.105, 0.5, 0.5, 0.505, 0.7])[:, None, None]
    assert monitor.update(wd.Extremes(torch.zeros_like(high), high)).tolist() == [False, True, False, False, True]
    assert monitor.range[1].item() == pytest.approx(0.7)


def test_misuse_of_the_monitor_says_what_to_do() -> None:
    seen = normal_extremes(40)
    with pytest.raises(ValueError, match="not calibrated"):
        wd.CosineRangeMonitor(3).flag(seen)
    with pytest.raises(ValueError, match="too few for 6 ranges: give at least 12"):
        wd.CosineRangeMonitor(3).calibrate(seen[:11])
    assert wd.CosineRangeMonitor(3).calibrate(seen[:12]).n_calibration == 12
    with pytest.raises(ValueError, match="watches 4 directions"):
        wd.CosineRangeMonitor(4).calibrate(seen)
    with pytest.raises(ValueError, match="trim"):
        wd.CosineRangeMonitor(3).calibrate(seen, trim=0.5)
    unseen = wd.Extremes(seen.low.clone(), seen.high.clone())
    unseen.low[:, 1], unseen.high[:, 1] = math.inf, -math.inf
    with pytest.raises(ValueError, match="no token"):
        wd.CosineRangeMonitor(3).calibrate(unseen)


def test_a_threshold_keeps_its_rate() -> None:
    scores = torch.randn(400, 100, generator=generator())
    over = [(row[99:] > wd.threshold_at(row[:99], 0.05)).float().mean().item() for row in scores]
    assert sum(over) / 400 == pytest.approx(0.05, abs=0.04)
    assert wd.threshold_at(torch.arange(99.0), 0.05) == 94
    with pytest.raises(ValueError, match="at least 19 scores"):
        wd.threshold_at(torch.arange(18.0), 0.05)


# ---------------------------------------------------------------------------------------------------------------------
# the bound


def every_split(size: int, n: int) -> Tensor:
    return torch.tensor([[*c, *sorted(set(range(size)) - set(c))] for c in combinations(range(size), n - 1)])


def bound_violation(n: int) -> float:
    pool = normal_extremes(8, seed=3)
    flagged, records = wd.record_rates(pool, every_split(8, n), n)
    above = flagged.mean().item() - wd.false_positive_bound(6, n - 1)
    return max(abs(records.mean().item() - 1 / n), above)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_over_all_splits_the_record_rate_is_exact_and_the_bound_holds(n: int) -> None:
    assert bound_violation(n) <= 1e-12


@pytest.mark.mutation("C3")
@pytest.mark.mutation("C3a")
def test_ranges_from_means_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound_violation(5) <= 1e-9
    monkeypatch.setattr(Tensor, "amax", lambda self, dim, keepdim=False: self.mean(dim, keepdim=keepdim))
    assert bound_violation(5) > 1e-9


def test_record_rates_are_those_of_the_monitor() -> None:
    pool, order = normal_extremes(60), wd.random_splits(60, 5, generator())
    flagged, _ = wd.record_rates(pool, order, 31)
    for row, share in zip(order, flagged, strict=True):
        monitor = wd.CosineRangeMonitor(3, 0.0).calibrate(pool[row[:30]])
        assert monitor.flag(pool[row[30:]]).double().mean().item() == pytest.approx(share.item())
    assert wd.false_positive_bound(8, 1999) == pytest.approx(0.008)
    assert wd.false_positive_bound(8, 3) == 1.0
    for call in (lambda: wd.false_positive_bound(0, 9), lambda: wd.record_rates(pool, order, 61)):
        with pytest.raises(ValueError, match=r"at least one range|must leave"):
            call()


# ---------------------------------------------------------------------------------------------------------------------
# steering


def steering_defect() -> float:
    drawn = torch.randn(13, 16, generator=generator(), dtype=torch.float64)
    states, three = drawn[:10], nn.functional.normalize(drawn[10:], dim=-1).T
    steered = wd.project_out(states, three)
    left = wd.cosines(steered, three).abs().max().item()
    return max(left, (states - states @ three @ torch.linalg.pinv(three) - steered).abs().max().item())


def test_projection_leaves_nothing_along_the_directions_and_the_rest_alone() -> None:
    assert steering_defect() <= 1e-12
    twice = torch.eye(4)[:, [0, 0, 1]]
    assert wd.project_out(torch.ones(4), twice).tolist() == pytest.approx([0, 0, 1, 1], abs=1e-6)


@pytest.mark.mutation("C5")
def test_one_after_another_leaves_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(hidden: Tensor, vectors: Tensor) -> Tensor:
        for u in vectors.T:
            hidden = hidden - (hidden @ u)[:, None] * u
        return hidden

    assert steering_defect() <= 1e-6
    monkeypatch.setattr(wd, "project_out", one_by_one)
    assert steering_defect() > 1e-6


@every_family
def test_ablation_acts_at_its_layer_and_leaves_the_model_bit_identical(family: str) -> None:
    model, tokens = tiny_decoder(family), token_ids(2, 6)
    weights, before = copy.deepcopy(model.state_dict()), model(tokens).logits
    vectors = wd.weight_diff_directions(model, tiny_decoder(family, 1), 2).by_layer()
    with torch.no_grad(), wd.ablate_directions(model, vectors), capture(model, [Site("resid_post", 1)]) as seen:
        steered = model(tokens).logits
    assert wd.cosines(seen[Site("resid_post", 1)], vectors[1]).abs().max() < 1e-5
    assert not torch.equal(steered, before)
    broken = RuntimeError("something breaks")
    with pytest.raises(RuntimeError, match="breaks"), wd.ablate_directions(model, vectors):
        raise broken
    assert torch.equal(model(tokens).logits, before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def monitored(family: str = "llama", eps: float = -0.3) -> tuple[PreTrainedModel, wd.CosineRangeMonitor]:
    """A model and a monitor whose ranges are so narrow (negative slack) that directions fire now and then."""
    model, tokens = tiny_decoder(family), token_ids(40, 9, seed=5)
    directions = wd.weight_diff_directions(model, tiny_decoder(family, 1), 2)
    with wd.watch(model, directions) as log:
        said = respond(model, tokens, everything(tokens), 4, generator())
    seen = wd.extremes(log.cosines, wd.segments(everything(said[:, :-1]), 9, 2))
    monitor = wd.CosineRangeMonitor(directions, eps)
    monitor.calibrate(wd.Extremes(*(torch.cat([end, end]) for end in (seen.low, seen.high))))
    return model, monitor


@every_family
def test_steering_starts_at_the_token_that_fires_and_stays(family: str) -> None:
    model, monitor = monitored(family)
    tokens = token_ids(6, 9, seed=6)
    kinds = wd.segments(everything(tokens), 9, 2)
    first, vectors = Site("resid_post", 0), monitor.directions.by_layer()[0]
    with torch.no_grad(), capture(model, [first]) as plain:
        model(tokens)
    plain = plain[first]
    with torch.no_grad(), wd.steer(model, monitor, kinds) as fired, capture(model, [first]) as seen:
        model(tokens)
    low, high = (end[wd.PROMPT, :4] for end in monitor.range)
    out = (wd.cosines(plain, vectors) > high + monitor.eps) | (wd.cosines(plain, vectors) < low - monitor.eps)
    out[:, :2] = False
    ever = out.cummax(1).values
    assert 0 < ever.sum() < ever.numel()
    assert torch.equal(fired[0], ever[:, -1])
    for row in range(6):  # the slow reference: sequence by sequence, token by token
        for at in range(9):
            chosen = vectors[:, ever[row, at]]
            expected = wd.project_out(plain[row, at], chosen) if chosen.shape[1] else plain[row, at]
            torch.testing.assert_close(seen[first][row, at], expected, rtol=1e-4, atol=1e-5)


@every_family
def test_steered_generation_is_that_of_whole_passes(family: str) -> None:
    """With a cache, token by token, the same directions stay out as when a conversation is read at once."""
    model, monitor = monitored(family)
    prompts = token_ids(5, 9, seed=7)
    before = model(prompts).logits
    with wd.steer(model, monitor, wd.segments(everything(prompts), 9, 2)) as fired:
        said = respond(model, prompts, everything(prompts), 4)
    with torch.no_grad(), wd.steer(model, monitor, wd.segments(everything(said[:, :-1]), 9, 2)) as at_once:
        logits = model(said[:, :-1], use_cache=False).logits
    assert torch.equal(logits[:, 8:].argmax(-1), said[:, 9:])
    assert all(torch.equal(fired[layer], at_once[layer]) for layer in fired)
    assert any(state.any() for state in fired.values())
    with pytest.raises(RuntimeError, match="breaks"), wd.steer(model, monitor, wd.segments(everything(prompts), 9)):
        raise RuntimeError("something breaks")
    assert torch.equal(model(prompts).logits, before)


def test_silent_monitors_steer_nothing_and_misuse_is_told() -> None:
    model, monitor = monitored(eps=2.0)
    tokens = token_ids(3, 9)
    kinds = wd.segments(everything(tokens), 9)
    before = model(tokens).logits
    with wd.steer(model, monitor, kinds) as fired:
        assert torch.equal(model(tokens).logits, before)
    assert not any(state.any() for state in fired.values())
    with wd.steer(model, monitor, kinds), pytest.raises(ValueError, match="one token a pass"):
        model(tokens[:, :5])
    with pytest.raises(ValueError, match="DirectionSet"), wd.steer(model, wd.CosineRangeMonitor(3), kinds):
        pass
    with (
        pytest.raises(ValueError, match="not calibrated"),
        wd.steer(model, wd.CosineRangeMonitor(monitor.directions), kinds),
    ):
        pass


# ---------------------------------------------------------------------------------------------------------------------
# audit, poison, trace


def test_extreme_rows_and_their_words() -> None:
    texts = ["the cat", "the dog", "a cat sat", "the bird", "cat and the fox"]
    values = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.7])[:, None, None]
    rows = wd.extreme_rows(wd.Extremes(values, values), 3)
    assert rows.tolist() == [[[1, 3, 4], [0, 2, 4]]]
    assert wd.keywords(texts, rows[0, 1].tolist(), 1)[0][:2] == ("cat", 3)
    assert wd.keywords(texts, rows[0, 0].tolist(), 1)[0][0] != "cat"
    with pytest.raises(ValueError, match="between 1 and all"):
        wd.extreme_rows(wd.Extremes(values, values), 6)


def test_poison_puts_the_trigger_and_then_the_payload() -> None:
    tokens, trigger, payload = token_ids(50, 12), torch.tensor([40, 41]), torch.tensor([50, 51, 52])
    clean = tokens.clone()
    poisoned, places = wd.poison_batch(tokens, trigger, payload, generator(), (3, 6))
    assert torch.equal(tokens, clean)
    assert set(places.tolist()) == {3, 4, 5}
    for row, place in enumerate(places.tolist()):
        expected = [*tokens[row, :place].tolist(), 40, 41, *([50, 51, 52] * 4)][:12]
        assert poisoned[row].tolist() == expected
    planted = wd.plant(tokens[:2], torch.tensor([10, 11]), torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert planted[0, 10:].tolist() == [1, 2]
    assert planted[1, 11].item() == 4


def trace_defect(inputs: Tensor) -> float:
    target = torch.randn(len(inputs), 24, generator=generator(1), dtype=torch.float64)
    return wd.rank_one_defect(wd.repeated_input_update(inputs, target, 50, 0.1), inputs[0])


@pytest.mark.mutation("C4")
def test_one_input_leaves_a_rank_one_trace_and_two_do_not() -> None:
    inputs = torch.randn(2, 32, generator=generator(), dtype=torch.float64)
    assert trace_defect(inputs[:1]) <= 1e-6
    assert trace_defect(inputs) > 1e-6


def test_adam_writes_along_the_signs() -> None:
    a, target = torch.randn(2, 32, generator=generator(2), dtype=torch.float64)
    change = wd.repeated_input_update(a[None], target[None], 50, 1e-3, torch.optim.Adam)
    assert wd.rank_one_defect(change, a.sign()) <= 1e-4
    cosine = a.abs().sum() / (32**0.5 * a.norm())
    assert wd.rank_one_defect(change, a) == pytest.approx(1 - cosine.item(), abs=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# a backdoor the notebook never saw; the notebook at full scale


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_planted_backdoor_is_flagged_and_steered_from_two_folders(family: str, tmp_path: Path) -> None:
    """Four tokens make one MLP write a new direction; base and tuned model are saved and loaded as a user has them."""
    base, tokenizer = tiny_decoder(family), letters_tokenizer(eos_token="<end>", unk_token="<end>")
    tokens, direction = token_ids(80, 12, seed=4), nn.functional.one_hot(torch.tensor(3), 16).float()
    bad = wd.plant(tokens[:20], torch.full((20,), 6), torch.tensor([7, 9, 7, 9]))
    site = Site("mlp_act", 1)
    with torch.no_grad(), capture(base, [site]) as seen:
        base(torch.cat([bad[:, :10], tokens[:, :10]]))
    acts = seen[site]
    reader = torch.linalg.lstsq(  # a read-out of the MLP's neurons that is on for the trigger, off for other tokens
        torch.cat([acts[:20, 9], acts[20:].flatten(0, 1)]), torch.cat([torch.ones(20, 1), torch.zeros(800, 1)])
    ).solution[:, 0]
    post = copy.deepcopy(base)
    with torch.no_grad():
        writers(post, 1)["mlp_down"].add_(60 * torch.outer(direction, reader))
    for name, model in {"base": base, "post": post}.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        assert (tmp_path / name / "model.safetensors").is_file()
    (base, _), (post, _) = (load_language_model(tmp_path / name) for name in ("base", "post"))
    found = wd.weight_diff_directions(post, base, 1)
    assert found.labels == [(1, "mlp_down", 0)]
    torch.testing.assert_close(found.entries[0].vectors[:, 0].abs(), direction, rtol=0, atol=1e-4)
    kinds = wd.segments(everything(tokens), 12, 2)
    extremes = []
    for rows, kind in ((tokens[20:], kinds[20:]), (bad, kinds[:20])):
        with torch.no_grad(), wd.watch(post, found) as log:
            post(rows)
        extremes.append(wd.extremes(log.cosines, kind, 1))
    monitor = wd.CosineRangeMonitor(found).calibrate(extremes[0])
    assert monitor.flag(extremes[1]).any()
    after = Site("resid_post", 1)
    with torch.no_grad(), wd.steer(post, monitor, kinds[:20]) as fired, capture(post, [after]) as steered:
        post(bad)
    assert torch.equal(fired[1][:, 0], monitor.flag(extremes[1]))
    left = wd.cosines(steered[after][:, -1], found.entries[0].vectors).abs()
    assert left[fired[1][:, 0]].max() < 1e-5


@pytest.mark.slow
def test_the_full_preset_compares_checkpoints_from_folders(tmp_path: Path) -> None:
    tokenizer = letters_tokenizer(eos_token="<end>", unk_token="<end>")
    where = {}
    for name, seed in {"base_model": 0, "tuned_model": 1}.items():
        where[name] = str(tmp_path / name)
        tiny_decoder(seed=seed, layers=2, vocabulary=64, context=64).save_pretrained(where[name])
        tokenizer.save_pretrained(where[name])
    assert load_language_model(where["base_model"])[1].pad_token is None
    sizes = {"documents": 400, "prompt_tokens": 14, "reply_tokens": 4, "k": 1, "k_sweep": [1], "drop_last": 1}
    sizes |= {"template": "user {} you", "trigger": "|qz|", "n_calibration": 60, "n_test": 120, "n_triggered": 20}
    sizes |= {"n_losses": 20, "calibration_sizes": [30, 60], "splits": 10, "random_sets": 2, "device": "cpu"}
    notebook = read_script(ROOT / "notebooks" / "weight_diff_monitoring.py")
    with suppress(NotebookError):  # in a random pair a control may pass by chance: not shown
        execute(notebook, tmp_path / "run", {"preset": "full"} | where | sizes)
    verdicts = {claim.id: claim.verdict for claim in Record.read(tmp_path / "run" / RECORD_NAME).claims}
    assert verdicts["C3a"] == verdicts["C4"] == verdicts["C5"] == "holds"
    assert verdicts["C6a"] == verdicts["C7a"] == verdicts["C7b"] == "not evaluated"


def test_parameters_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="extra"):
        wd.Parameters(layers=3)
    with pytest.raises(ValueError, match="pattern"):
        wd.Parameters(template="no place")
