"""Tests of lib.methods.layernorm_removal on small random GPT-2 models."""

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lib.batch.errors import NotebookError
from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import ROOT
from lib.bench.record import Record
from lib.bench.run import RECORD_NAME
from lib.methods.layernorm_removal import (
    EXPORT_EPS,
    FakeLayerNorm,
    NormRemovalSchedule,
    Parameters,
    TokenSlots,
    activation_patching,
    attribution_patching,
    calibration_error,
    deviation,
    direct_effect,
    direct_logit_attribution,
    export_lnfree_gpt2,
    fake_norms,
    final_scale,
    fine_tune,
    fold_linear_norms,
    language_model_loss,
    neuron_ablation,
    nmae,
    observe_deviations,
    remove_norm,
    replace_layer_norms,
    residual_std_loss,
    sink_rate,
    unembedding_null_space,
    window_losses,
)
from lib.substrates.hooks import Site, capture, patch
from lib.substrates.training import Plan

END = 0
ALL_AT_ONCE = NormRemovalSchedule(2, start_step=0, gaps=[0] * 5)


def tiny(seed: int = 0, **changes: object) -> GPT2LMHeadModel:
    """A random GPT-2 in float64 whose norms have gains and biases of their own."""
    sizes = {"vocab_size": 11, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3, "tie_word_embeddings": False}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(GPT2Config(**(sizes | quiet | {"initializer_range": 0.3} | changes))).double().eval()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.LayerNorm):
                    module.weight.normal_(1, 0.3)
                    module.bias.normal_(0, 0.3)
    return model


def token_ids(*shape: int, seed: int = 0, vocabulary: int = 11) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def without_norms(model: GPT2LMHeadModel, tokens: Tensor | None = None, stop: str = "") -> GPT2LMHeadModel:
    """All norms removed at once, up to the phase `stop`."""
    fake = replace_layer_norms(model, end_token=END)
    observe_deviations(fake, [token_ids(8, 10) if tokens is None else tokens])
    for kind, layer in NormRemovalSchedule(model.config.n_layer, start_step=0, gaps=[0] * 5).events(0):
        if kind == stop:
            break
        remove_norm(fake, kind, layer)
    return fake


def sampler(generator: torch.Generator, size: int) -> Tensor:
    return torch.randint(11, (size, 9), generator=generator)


# ---------------------------------------------------------------------------------------------------------------------
# surgery


@pytest.mark.parametrize("tied", [False, True])
def test_replacing_changes_no_output_and_leaves_the_original(tied: bool) -> None:
    model, tokens = tiny(tie_word_embeddings=tied), token_ids(3, 9)
    weights = copy.deepcopy(model.state_dict())
    fake = replace_layer_norms(model, special_positions=2, end_token=END)
    torch.testing.assert_close(fake(tokens).logits, model(tokens).logits, rtol=0, atol=1e-12)
    assert isinstance(model.transformer.ln_f, nn.LayerNorm)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert (fake.lm_head.weight is fake.transformer.wte.weight) is tied
    assert not any(norm.training for norm in fake_norms(fake))
    assert len(fake_norms(fake)) == 2 * 2 + 1


def test_frozen_norm_is_the_formula() -> None:
    x = torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    norm = nn.LayerNorm(8).double()
    norm.weight.data, norm.bias.data = torch.linspace(0.5, 2, 8).double(), torch.linspace(-1, 1, 8).double()
    fake = FakeLayerNorm(norm, TokenSlots(1, None), ["main"], 0.9)
    torch.testing.assert_close(fake.eval()(x), norm(x))
    fake.train()(x)
    fake.freeze()
    sigma = x.new_tensor([[math.sqrt(((t - t.mean()) ** 2).mean() + 1e-5) for t in row] for row in x])
    assert fake.scale()[0] == pytest.approx(sigma[:, 1:].mean().item(), rel=1e-12)
    assert fake.scale()[1] == pytest.approx(sigma[:, 0].mean().item(), rel=1e-12)
    fake.slots.see_positions(torch.arange(6))
    scales = torch.cat([fake.scale()[1:], fake.scale()[:1].expand(5)])
    expected = (x - x.mean(-1, keepdim=True)) / scales[:, None] * norm.weight + norm.bias
    torch.testing.assert_close(fake(x), expected)
    assert not fake.is_linear
    fake.merge_positions()
    assert fake.is_linear


def test_moving_average_is_that_of_the_batches() -> None:
    batches = [torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(i)) * (i + 1) for i in range(4)]
    fake = FakeLayerNorm(nn.LayerNorm(8), TokenSlots(1, None), ["main"], 0.9)
    expected = None
    for x in batches:
        fake(x)
        now = x[:, 1:].std(-1, unbiased=False).mean().item()
        expected = now if expected is None else 0.9 * expected + 0.1 * now
    assert fake.scale()[0].item() == pytest.approx(expected, rel=1e-4)
    before = fake.scale().clone()
    fake.eval()(batches[0])
    fake.freeze()
    fake.train()(batches[0])
    assert torch.equal(fake.scale(), before), "neither evaluation nor a frozen path moves the average"


def test_qk_and_v_are_removed_apart() -> None:
    model, tokens = tiny(), token_ids(8, 10)
    fake = replace_layer_norms(model)
    observe_deviations(fake, [tokens])
    split = fake.transformer.h[0].attn.c_attn
    x = torch.randn(2, 5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    joint = model.transformer.h[0].attn.c_attn(model.transformer.h[0].ln_1(x))
    torch.testing.assert_close(split(x), joint)
    remove_norm(fake, "bos")
    remove_norm(fake, "qk", 0)
    assert torch.allclose(split(x)[..., 48:], joint[..., 48:])
    assert not torch.allclose(split(x)[..., :48], joint[..., :48])
    affine = split(x + 1e-3) - split(x)
    assert affine.abs().max() < 1e-10, "adding a constant to all coordinates is centred away"


def test_first_positions_and_end_of_text_have_scales_of_their_own_until_the_last_phases() -> None:
    slots = TokenSlots(2, end_token=7)
    slots.see_tokens(torch.tensor([[7, 1, 7, 3]]))
    slots.see_positions(torch.arange(4)[None])
    assert slots.by_position.tolist() == [[1, 2, 0, 0]]
    assert slots.with_end.tolist() == [[1, 2, 1, 0]]
    slots.see_positions(torch.arange(4)[None])
    assert slots.with_end.tolist() == [[1, 2, 0, 0]], "embeddings given without ids have no end of text"

    tokens = token_ids(8, 10)
    tokens[:, 4] = END
    fake = without_norms(tiny(), tokens, stop="eot")
    with_exception = fake(tokens).logits
    remove_norm(fake, "eot")
    changed = (fake(tokens).logits - with_exception).abs().amax((0, 2))
    assert changed[:4].max() < 1e-9 or (tokens[:, :4] == END).any()
    assert changed[4:].min() > 1e-6
    assert not fake.transformer.ln_f.is_linear
    remove_norm(fake, "bos")
    assert all(norm.is_linear for norm in fake_norms(fake))


def test_generation_with_a_cache_knows_its_positions() -> None:
    fake = without_norms(tiny(), stop="eot")
    prompt = token_ids(2, 3)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    with_cache = fake.generate(prompt, attention_mask=mask, use_cache=True, **options)
    assert torch.equal(with_cache, fake.generate(prompt, attention_mask=mask, use_cache=False, **options))


def test_a_copy_does_not_write_into_the_original() -> None:
    fake = without_norms(tiny(), stop="eot")
    twin = copy.deepcopy(fake)
    fake(token_ids(2, 9))
    slots = fake_norms(fake)[0].slots
    before = slots.by_position
    twin(token_ids(2, 5))
    assert slots.by_position is before
    assert len({id(norm.slots) for norm in fake_norms(twin)}) == 1
    remove_norm(twin, "bos")
    assert not fake_norms(fake)[0].is_linear


def test_a_single_sequence_gives_what_the_batch_gives() -> None:
    fake, tokens = without_norms(tiny()), token_ids(4, 9)
    torch.testing.assert_close(fake(tokens[:1]).logits, fake(tokens).logits[:1])
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(fake(tokens[order]).logits, fake(tokens).logits[order])


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4), st.integers(2, 6), st.integers(2, 9), st.floats(0.1, 20), st.floats(-5, 5), st.integers(0, 999)
)
def test_a_frozen_norm_is_affine_and_a_real_one_is_scale_free(
    batch: int, length: int, width: int, factor: float, shift: float, seed: int
) -> None:
    x, y = torch.randn(2, batch, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    norm = nn.LayerNorm(width, eps=0.0).double()  # any other eps breaks the scale where a token varies little
    fake = FakeLayerNorm(norm, TokenSlots(0, None), ["main"], 0.9)
    fake.train()(x)
    torch.testing.assert_close(fake.eval()(factor * x + shift), fake(x), rtol=1e-6, atol=1e-6)
    fake.freeze()
    mixed = fake(factor * x + (1 - factor) * y)
    torch.testing.assert_close(mixed, factor * fake(x) + (1 - factor) * fake(y), rtol=1e-9, atol=1e-8)


# ---------------------------------------------------------------------------------------------------------------------
# schedule, losses, fine-tuning


@pytest.mark.parametrize(
    ("layers", "start", "gaps", "starts"),
    [
        (12, 20, [2, 2, 3, 2, 10], [20, 44, 68, 104, 106, 116]),
        (24, 20, [2, 2, 3, 2, 10], [20, 68, 116, 188, 190, 200]),
        (36, 30, [4, 4, 6, 2, 10], [30, 174, 318, 534, 536, 546]),
        (48, 50, [4, 4, 6, 2, 10], [50, 242, 434, 722, 724, 734]),
    ],
)
def test_the_schedule_gives_the_four_published_ones(
    layers: int, start: int, gaps: list[int], starts: list[int]
) -> None:
    schedule = NormRemovalSchedule(layers, start_step=start, gaps=gaps)
    firsts = {}
    for step, kind, _ in schedule.timeline:
        firsts.setdefault(kind, step)
    assert list(firsts) == ["mlp", "qk", "v", "f", "eot", "bos"]
    assert list(firsts.values()) == starts
    assert schedule.events(start) == [("mlp", 0)]
    assert len(schedule.timeline) == 3 * layers + 3


def test_a_schedule_without_gaps_removes_all_at_once() -> None:
    assert len(ALL_AT_ONCE.events(0)) == 3 * 2 + 3
    assert ALL_AT_ONCE.events(1) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": ["mlp", "qk", "v"]}, "permutation"),
        ({"order": ["mlp", "qk", "v", "x"]}, "permutation"),
        ({"gaps": [1, 2]}, "five"),
        ({"gaps": [1, 1, 1, 1, -1]}, "five"),
    ],
)
def test_a_wrong_schedule_says_what_is_wrong(changes: dict[str, list], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NormRemovalSchedule(2, **changes)


def test_auxiliary_loss_value_and_gradient() -> None:
    residual = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    excluded = torch.zeros(2, 4, dtype=torch.bool)
    excluded[:, 0] = True
    loss = residual_std_loss(residual, excluded, 0.3)
    sigma = deviation(residual, 1e-5).detach()
    target = sigma[:, 1:].mean()
    assert loss.item() == pytest.approx(0.3 * ((sigma - target) ** 2).mean().item(), rel=1e-12)
    loss.backward()
    step = torch.randn(residual.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))

    def with_fixed_target(x: Tensor) -> float:
        return (0.3 * (deviation(x, 1e-5) - target).square().mean()).item()

    with torch.no_grad():
        slope = (with_fixed_target(residual + 1e-6 * step) - with_fixed_target(residual - 1e-6 * step)) / 2e-6
    assert (residual.grad * step).sum().item() == pytest.approx(slope, rel=1e-6)


def test_language_model_loss_is_cross_entropy_plus_the_auxiliary_loss() -> None:
    model, windows = tiny(), token_ids(3, 9)
    plain = language_model_loss(model, windows)
    torch.testing.assert_close(plain, window_losses(model, windows).mean())
    log_p = model(windows[:, :-1]).logits.log_softmax(-1)
    torch.testing.assert_close(plain, -log_p.gather(-1, windows[:, 1:, None]).mean())
    with capture(model, [Site("final_resid")]) as seen:
        model(windows[:, :-1])
    excluded = windows[:, :-1] == END
    excluded[:, 0] = True
    auxiliary = residual_std_loss(seen[Site("final_resid")], excluded, 0.5)
    torch.testing.assert_close(language_model_loss(model, windows, 0.5, END), plain + auxiliary)


def test_window_losses_do_not_depend_on_the_chunk_or_the_mode() -> None:
    model, windows = tiny(), token_ids(7, 9)
    model.train()
    torch.testing.assert_close(window_losses(model, windows, chunk_tokens=20), window_losses(model, windows))
    assert model.training


def test_fine_tuning_removes_every_norm_and_leaves_the_model() -> None:
    model = tiny().float()
    before = copy.deepcopy(model.state_dict())
    schedule = NormRemovalSchedule(2, order=["v", "f", "mlp", "qk"], start_step=1, gaps=[1] * 5)
    options = {"probe": token_ids(4, 9), "aux_weight": 0.1, "end_token": END}
    runs = [
        fine_tune(
            model, sampler, Plan(12, 1e-3, 8), generator=torch.Generator().manual_seed(5), schedule=schedule, **options
        )
        for _ in range(2)
    ]
    assert all(norm.is_linear for norm in fake_norms(runs[0].model))
    assert runs[0].trace == runs[1].trace, "equal generators, equal runs"
    assert len(runs[0].jumps) == 9
    assert not runs[0].model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(a, b) for a, b in zip(runs[0].model.parameters(), model.parameters(), strict=True))


def test_vanilla_fine_tuning_keeps_every_norm() -> None:
    run = fine_tune(tiny(), sampler, Plan(2, 1e-3, 4), token_ids(4, 9), generator=torch.Generator().manual_seed(6))
    assert not any(any(norm.frozen.values()) for norm in fake_norms(run.model))
    assert run.jumps == []
    assert [step for step, _ in run.trace] == [0, 1, 2]


def test_a_schedule_longer_than_the_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="more steps"):
        fine_tune(
            tiny(),
            sampler,
            Plan(10, 1e-3),
            token_ids(4, 9),
            generator=torch.Generator(),
            schedule=NormRemovalSchedule(2),
        )


# ---------------------------------------------------------------------------------------------------------------------
# folding and exporting


def fold_error(model: GPT2LMHeadModel, folded: GPT2LMHeadModel) -> float:
    tokens = token_ids(4, 9, seed=7)
    return (folded(tokens).logits - model(tokens).logits).abs().max().item()


@pytest.mark.parametrize("tied", [False, True])
def test_folding_leaves_no_norm_and_the_same_logits(tied: bool) -> None:
    fake = without_norms(tiny(tie_word_embeddings=tied, n_layer=3, n_inner=20, activation_function="relu"))
    folded = fold_linear_norms(fake)
    assert fold_error(fake, folded) < 1e-10
    assert not any(isinstance(module, (nn.LayerNorm, FakeLayerNorm)) for module in folded.modules())


@pytest.mark.parametrize("tied", [False, True])
def test_export_is_an_ordinary_gpt2_that_survives_saving(tied: bool, tmp_path) -> None:
    fake = without_norms(tiny(tie_word_embeddings=tied, scale_attn_by_inverse_layer_idx=True))
    fake.transformer.h[0].attn.c_attn.norm.scale("v").mul_(1.7)  # qk and v froze at different times
    plain = export_lnfree_gpt2(fake)
    assert fold_error(fake, plain) < 1e-8
    plain.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert fold_error(fake, again) < 1e-8
    assert again.config.layer_norm_epsilon == EXPORT_EPS
    seen_linear = replace_layer_norms(again)
    assert all(norm.is_linear for norm in fake_norms(seen_linear))
    assert fold_error(fake, fold_linear_norms(seen_linear)) < 1e-8


@pytest.mark.parametrize("stop", ["f", "bos"])
@pytest.mark.parametrize("convert", [fold_linear_norms, export_lnfree_gpt2])
def test_a_model_with_norms_left_is_not_folded(convert, stop: str) -> None:
    with pytest.raises(ValueError, match="free of LayerNorm"):
        convert(without_norms(tiny(), stop=stop))


@pytest.mark.mutation("C5")
def test_folding_v_with_the_scale_of_qk_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = without_norms(tiny())
    fake.transformer.h[0].attn.c_attn.norm.scale("v").mul_(1.1)
    assert fold_error(fake, fold_linear_norms(fake)) <= 1e-9
    scale = FakeLayerNorm.scale
    folded_wrongly = copy.deepcopy(fake)
    with monkeypatch.context() as patched:
        patched.setattr(FakeLayerNorm, "scale", lambda self, path="main": scale(self, "qk" if path == "v" else path))
        folded_wrongly = fold_linear_norms(folded_wrongly)
    assert fold_error(fake, folded_wrongly) > 1e-9


# ---------------------------------------------------------------------------------------------------------------------
# direct logit attribution


def attribution_error(model: GPT2LMHeadModel) -> float:
    windows = token_ids(20, 9, seed=8)
    parts = (windows[:, :-1], windows[:, -1])
    return nmae(direct_logit_attribution(model, *parts), direct_effect(model, *parts)).max().item()


def test_attribution_is_exact_without_norms_only() -> None:
    model = tiny()
    assert attribution_error(without_norms(model)) < 1e-8
    assert attribution_error(model) > 10
    torch.testing.assert_close(
        direct_logit_attribution(model, token_ids(3, 5), token_ids(3)),
        direct_logit_attribution(replace_layer_norms(model), token_ids(3, 5), token_ids(3)),
    )


@pytest.mark.mutation("C3")
def test_keeping_the_last_norm_breaks_exact_attribution() -> None:
    assert attribution_error(without_norms(tiny())) <= 1e-8
    assert attribution_error(without_norms(tiny(), stop="f")) > 1e-8


@pytest.mark.parametrize("linear", [False, True])
def test_direct_effect_is_that_of_taking_the_write_out(linear: bool) -> None:
    model = without_norms(tiny()) if linear else tiny()
    tokens, targets, head = token_ids(4, 9), token_ids(4, seed=1), 2
    site, final = Site("head_out", 1), Site("final_resid")
    with capture(model, [site, final]) as seen:
        logits = model(tokens).logits[:, -1]
    weight = model.transformer.h[1].attn.c_proj.weight[8 * head : 8 * head + 8]
    write = seen[site][:, :, head] @ weight
    with torch.no_grad(), patch(model, {final: seen[final] - write}):
        without = model(tokens).logits[:, -1]
    expected = (logits - without).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(direct_effect(model, tokens, targets)[1, head], expected)


def test_the_writes_of_all_heads_add_up() -> None:
    """Attribution is linear, so the heads' shares sum to that of their sum."""
    model, tokens, targets = tiny(), token_ids(4, 9), token_ids(4, seed=1)
    with capture(model, [Site("attn_out", 0), Site("attn_out", 1), Site("final_resid")]) as seen:
        model(tokens)
    biases = sum(block.attn.c_proj.bias for block in model.transformer.h)
    total = (seen[Site("attn_out", 0)] + seen[Site("attn_out", 1)])[:, -1] - biases
    centred = total - total.mean(-1, keepdim=True)
    scale = final_scale(model, seen[Site("final_resid")][:, -1])
    expected = (centred / scale[:, None] * model.transformer.ln_f.weight * model.lm_head.weight[targets]).sum(-1)
    torch.testing.assert_close(direct_logit_attribution(model, tokens, targets).sum((0, 1)), expected)


def test_nmae_by_hand() -> None:
    predicted, true = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[2.0, 2.0], [1.0, -1.0]])
    assert nmae(predicted, true).tolist() == [25.0, 100.0]
    assert nmae(predicted, true, (0, 1)).item() == 50.0
    with pytest.raises(ValueError, match="shapes differ"):
        nmae(predicted, true[0])


# ---------------------------------------------------------------------------------------------------------------------
# null space


def null_write_violations(model: GPT2LMHeadModel) -> float:
    """Largest logit change by writes of sixteen deviations into the null space."""
    final, tokens = Site("final_resid"), token_ids(6, 9, seed=9)
    basis = unembedding_null_space(model)
    with capture(model, [final]) as seen:
        logits = model(tokens).logits
    weights = torch.randn(6, 9, len(basis), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    write = 16 * deviation(seen[final], 0)[..., None] * nn.functional.normalize(weights @ basis, dim=-1)
    with torch.no_grad(), patch(model, {final: seen[final] + write}):
        return (model(tokens).logits - logits).abs().max().item()


def test_null_space_is_orthonormal_centred_and_whole() -> None:
    model = tiny()
    basis = unembedding_null_space(model)
    assert basis.shape == (24 - 11 - 1, 24)
    torch.testing.assert_close(basis @ basis.T, torch.eye(12).double())
    assert basis.sum(-1).abs().max() < 1e-12
    assert (basis @ (model.lm_head.weight * model.transformer.ln_f.weight).T).abs().max() < 1e-12
    large = tiny(vocab_size=40)
    assert unembedding_null_space(large).shape == (0, 24)
    for network in (model, large):
        exported = export_lnfree_gpt2(without_norms(network)).float()
        assert unembedding_null_space(exported).shape == unembedding_null_space(network).shape


@pytest.mark.mutation("C4")
def test_a_real_last_norm_carries_null_writes_to_the_logits() -> None:
    assert null_write_violations(without_norms(tiny())) <= 1e-9
    assert null_write_violations(without_norms(tiny(), stop="f")) > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# patching


def pairs() -> tuple[Tensor, Tensor]:
    clean = token_ids(3, 7)
    corrupted = clean.clone()
    corrupted[torch.arange(3), torch.tensor([2, 4, 3])] += 1
    return clean, corrupted % 11


def logit_gap(logits: Tensor) -> Tensor:
    return logits[..., 1] - logits[..., 2]


def test_activation_patching_is_cell_by_cell_patching() -> None:
    model, (clean, corrupted) = tiny(), pairs()
    effects = activation_patching(model, clean, corrupted, logit_gap)
    assert effects.shape == (2, 7, 3)
    for layer in range(2):
        site = Site("resid_pre", layer)
        with capture(model, [site]) as seen:
            model(clean)
        for position in range(7):

            def edit(x: Tensor, wanted: Tensor = seen[site], position: int = position) -> Tensor:
                return torch.cat([x[:, :position], wanted[:, position : position + 1], x[:, position + 1 :]], dim=1)

            with torch.no_grad(), patch(model, {site: edit}):
                patched = logit_gap(model(corrupted).logits[:, -1])
            expected = patched - logit_gap(model(corrupted).logits[:, -1])
            torch.testing.assert_close(effects[layer, position], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("linear", [False, True])
def test_attribution_is_the_slope_of_activation_patching(linear: bool) -> None:
    model = without_norms(tiny()) if linear else tiny()
    slope = activation_patching(model, *pairs(), logit_gap, fraction=1e-5) / 1e-5
    torch.testing.assert_close(attribution_patching(model, *pairs(), logit_gap), slope, rtol=1e-2, atol=1e-4)


def test_patching_leaves_gradients_alone_and_works_inside_no_grad() -> None:
    model = tiny()
    with torch.no_grad():
        estimate = attribution_patching(model, *pairs(), logit_gap)
    assert not estimate.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_pairs_are_checked() -> None:
    model, (clean, _) = tiny(), pairs()
    with pytest.raises(ValueError, match="the same"):
        activation_patching(model, clean, clean, logit_gap)
    with pytest.raises(ValueError, match="one shape"):
        attribution_patching(model, clean, clean[:, :-1], logit_gap)


# ---------------------------------------------------------------------------------------------------------------------
# neurons, calibration, sinks


@pytest.mark.parametrize("linear", [False, True])
def test_neuron_ablation_is_that_of_patching_the_neuron(linear: bool) -> None:
    model = without_norms(tiny()) if linear else tiny()
    windows, site = token_ids(4, 9), Site("mlp_act", 1)
    with capture(model, [site]) as seen:
        before = model(windows[:, :-1]).logits.log_softmax(-1)

    def edit(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., 5] = seen[site][..., 5].mean()
        return x

    with torch.no_grad(), patch(model, {site: edit}):
        after = model(windows[:, :-1]).logits.log_softmax(-1)
    loss = (after - before).gather(-1, windows[:, 1:, None]).abs().mean()
    entropy = ((after.exp() * after).sum(-1) - (before.exp() * before).sum(-1)).abs().mean()
    effect = neuron_ablation(model, windows, torch.tensor([3, 5]))
    torch.testing.assert_close(effect[:, 1], torch.stack([loss, entropy]).detach())
    kept = neuron_ablation(model, windows, torch.tensor([3, 5]), keep_scale=True)
    assert torch.allclose(kept, effect) is linear


def test_calibration_error_by_hand() -> None:
    sure = torch.tensor([[0.0, math.log(3.0)]] * 4)  # confidence 3/4 in class 1
    assert calibration_error(sure, torch.tensor([1, 1, 1, 0])) == pytest.approx(0, abs=1e-6)
    assert calibration_error(sure, torch.tensor([0, 0, 0, 0])) == pytest.approx(0.75)
    both = torch.cat(
        [sure, torch.tensor([[math.log(9.0), 0.0]] * 4)]
    )  # confidence 9/10 in class 0, right half the time
    assert calibration_error(both, torch.tensor([1, 1, 1, 0, 0, 0, 1, 1])) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="one target a row"):
        calibration_error(sure, torch.tensor([1]))


def test_sink_rate_by_hand() -> None:
    weights = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]])[None, None]
    assert sink_rate([weights]) == 0.5
    assert sink_rate([weights], threshold=0.6) == 0.0
    with pytest.raises(ValueError, match="eager"):
        sink_rate(())


# ---------------------------------------------------------------------------------------------------------------------
# bad input


def test_models_of_another_kind_are_refused() -> None:
    bert = BertForMaskedLM(
        BertConfig(vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    )
    with pytest.raises(ValueError, match="GPT2LMHeadModel"):
        replace_layer_norms(bert)
    with pytest.raises(ValueError, match="replace_layer_norms first"):
        remove_norm(tiny(), "f")


def test_misuse_of_the_norms_says_what_to_do() -> None:
    fake = replace_layer_norms(tiny())
    with pytest.raises(ValueError, match="training mode before freezing"):
        remove_norm(fake, "f")
    with pytest.raises(ValueError, match="no removal 'attn'"):
        remove_norm(fake, "attn")
    with pytest.raises(ValueError, match="paths"):
        fake.transformer.ln_f.freeze("qk")
    with pytest.raises(ValueError, match="above 1 special"):
        observe_deviations(fake, [token_ids(3, 1)])
    with pytest.raises(ValueError, match="special_positions"):
        replace_layer_norms(tiny(), special_positions=0, end_token=END)
    with pytest.raises(ValueError, match="every position is excluded"):
        residual_std_loss(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool), 0.1)


def test_parameters_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="extra"):
        Parameters(layers=3)
    with pytest.raises(ValueError, match="greater than"):
        Parameters(rate=0.0)


# ---------------------------------------------------------------------------------------------------------------------
# the notebook at full scale, on checkpoints small enough for a test


@pytest.mark.slow
def test_the_full_preset_compares_checkpoints_from_folders(tmp_path: Path) -> None:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(["a b c"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")
    base = tiny(vocab_size=len(tokenizer), tie_word_embeddings=True)
    free = export_lnfree_gpt2(without_norms(base, token_ids(8, 10, vocabulary=len(tokenizer))))
    where = {}
    for name, network in {"model": base, "vanilla_model": base, "lnfree_model": free}.items():
        where[name] = str(tmp_path / name)
        network.float().save_pretrained(where[name])
        tokenizer.save_pretrained(where[name])
    sizes = {"context": 15, "documents": 100, "eval_windows": 16, "probe_windows": 4, "pairs": 8}
    notebook = read_script(ROOT / "notebooks" / "layernorm_removal.py")
    with pytest.raises(NotebookError, match="C1: an exact"):  # a random model loses nothing to one stroke: not shown
        execute(notebook, tmp_path / "run", {"preset": "full"} | where | sizes)
    verdicts = {claim.id: claim.verdict for claim in Record.read(tmp_path / "run" / RECORD_NAME).claims}
    assert verdicts["C3"] == verdicts["C5"] == "holds"
    assert verdicts["C4"] == verdicts["C8"] == "not evaluated"
