import pytest
import torch
from tiny_models import FAMILIES, HEADS, INNER, WIDTH, tiny_decoder
from torch import Tensor, nn
from transformers import PreTrainedModel

from lib.substrates.architecture import architecture
from lib.substrates.hooks import Site, capture, patch

LAYERS = 3
KINDS = ("resid_pre", "resid_mid", "resid_post", "attn_out", "head_out", "mlp_out", "mlp_act")
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
OTHER = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_decoder(request.param)


def all_sites(model: nn.Module) -> list[Site]:
    kinds = [kind for kind in KINDS if kind != "resid_mid" or not architecture(model).parallel]
    return [Site(kind, layer) for kind in kinds for layer in range(LAYERS)] + [Site("final_resid")]


@torch.no_grad()
def logits(model: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    return model(tokens).logits


def hooks_left(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_the_parts_are_found(model: PreTrainedModel) -> None:
    parts = architecture(model)
    assert (parts.n_layers, parts.n_heads) == (LAYERS, HEADS)
    assert parts.embedding is model.get_input_embeddings()
    assert parts.unembedding is model.get_output_embeddings()
    assert parts.output_weights(0).shape == (HEADS, parts.head_dim, WIDTH)
    # The body alone, and a wrapper around the model, are the same decoder.
    assert architecture(model.base_model).blocks == parts.blocks
    assert architecture(nn.ModuleDict({"inner": model})).blocks == parts.blocks


def test_captured_streams_are_those_that_transformers_reports(model: PreTrainedModel) -> None:
    with capture(model, all_sites(model)) as store, torch.no_grad():
        outputs = model(TOKENS, output_hidden_states=True)
    assert set(store) == set(all_sites(model))
    for layer in range(LAYERS):
        assert torch.equal(store[Site("resid_pre", layer)], outputs.hidden_states[layer])
        if layer + 1 < LAYERS:
            assert torch.equal(store[Site("resid_post", layer)], outputs.hidden_states[layer + 1])
    parts = architecture(model)
    final = store[Site("final_resid")]
    assert torch.equal(store[Site("resid_post", LAYERS - 1)], final)
    with torch.no_grad():
        assert torch.equal(parts.final_norm(final), outputs.hidden_states[LAYERS])
        assert parts.unembedding is not None
        assert torch.equal(parts.unembedding(parts.final_norm(final)), outputs.logits)


def test_the_parts_of_the_stream_add_up(model: PreTrainedModel) -> None:
    parts = architecture(model)
    with capture(model, all_sites(model)) as store:
        logits(model)
    for layer in range(LAYERS):
        pre, post, attention, mlp = (store[Site(k, layer)] for k in ("resid_pre", "resid_post", "attn_out", "mlp_out"))
        torch.testing.assert_close(pre + attention + mlp, post)
        heads = store[Site("head_out", layer)]
        assert heads.shape == (2, 6, HEADS, parts.head_dim)
        assert store[Site("mlp_act", layer)].shape == (2, 6, INNER)
        bias = getattr(parts.projections[layer], "bias", None)
        written = torch.einsum("bshe,hed->bsd", heads, parts.output_weights(layer).detach())
        torch.testing.assert_close(written + (0 if bias is None else bias.detach()), attention)
        with torch.no_grad():
            torch.testing.assert_close(parts.mlp_downs[layer](store[Site("mlp_act", layer)]), mlp)
        if not parts.parallel:
            torch.testing.assert_close(store[Site("resid_mid", layer)], pre + attention)


@pytest.mark.parametrize("detach", [True, False])
def test_capturing_and_identity_patches_change_no_bit(model: PreTrainedModel, detach: bool) -> None:
    expected = logits(model)
    with capture(model, all_sites(model), detach=detach):
        assert torch.equal(model(TOKENS).logits, expected)
    with patch(model, {site: lambda activation: activation for site in all_sites(model)}):
        assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model), expected)
    assert hooks_left(model) == 0


def test_the_model_is_as_before_when_the_body_raises(model: PreTrainedModel) -> None:
    expected = logits(model)
    with pytest.raises(KeyError), patch(model, dict.fromkeys(all_sites(model), torch.zeros_like)):
        raise KeyError(logits(model))
    with pytest.raises(KeyError), capture(model, all_sites(model)):
        raise KeyError
    with pytest.raises(RuntimeError, match="inside an edit"), patch(model, {Site("mlp_out", 1): _raise}):
        logits(model)
    with (
        pytest.raises(ValueError, match="out of range"),
        patch(model, {Site("mlp_out", 0): torch.zeros_like, Site("mlp_out", 9): torch.zeros_like}),
    ):
        pass
    assert hooks_left(model) == 0
    assert torch.equal(logits(model), expected)


def _raise(activation: Tensor) -> Tensor:
    raise RuntimeError("inside an edit")


@pytest.mark.parametrize("kind", ["resid_pre", "resid_mid", "resid_post", "final_resid"])
def test_another_run_s_stream_gives_that_run_s_logits(model: PreTrainedModel, kind: str) -> None:
    sites = [site for site in all_sites(model) if site.kind == kind]
    for site in sites:
        with capture(model, [site]) as store:
            expected = logits(model, OTHER)
        with patch(model, store):
            patched = logits(model)
        # The middle of a block is reached by a difference, every other stream exactly.
        torch.testing.assert_close(patched, expected, atol=1e-5 if kind == "resid_mid" else 0, rtol=0)


def test_all_contributions_of_another_run_give_its_logits(model: PreTrainedModel) -> None:
    for contribution in ("attn_out", "head_out"):
        for mlp in ("mlp_out", "mlp_act"):
            sites = [Site(kind, layer) for kind in (contribution, mlp) for layer in range(LAYERS)]
            with capture(model, [Site("resid_pre", 0), *sites]) as store:
                expected = logits(model, OTHER)
            with patch(model, store):
                assert torch.equal(logits(model), expected)


def test_removing_one_head_removes_its_write(model: PreTrainedModel) -> None:
    site, head = Site("head_out", LAYERS - 1), 2
    sites = [site, Site("attn_out", LAYERS - 1)]

    def without_head(activation: Tensor) -> Tensor:
        kept = activation.clone()
        kept[:, :, head] = 0
        return kept

    with capture(model, sites) as store:
        logits(model)
    with patch(model, {site: without_head}), capture(model, sites) as ablated:
        logits(model)
    write = store[site][:, :, head] @ architecture(model).output_weights(LAYERS - 1)[head].detach()
    torch.testing.assert_close(store[sites[1]] - ablated[sites[1]], write, atol=1e-6, rtol=1e-5)
    assert not ablated[site][:, :, head].any()


def test_gradients_at_sites_agree_with_finite_differences(model: PreTrainedModel) -> None:
    model.double()
    sites = all_sites(model)
    with capture(model, sites, detach=False) as store:
        metric = model(TOKENS).logits[0, -1, 3]
    gradients = torch.autograd.grad(metric, [store[site] for site in sites])
    generator = torch.Generator().manual_seed(0)
    # The step is wide and the tolerance loose because the RMS norms compute in float32 whatever the model's type.
    for site, gradient in zip(sites, gradients, strict=True):
        direction = torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype)
        values = []
        for sign in (-1, 1):
            with patch(model, {site: lambda a, s=sign, d=direction: a + s * 3e-4 * d}), torch.no_grad():
                values.append(model(TOKENS).logits[0, -1, 3].item())
        slope = (values[1] - values[0]) / 6e-4
        assert slope == pytest.approx((gradient * direction).sum().item(), rel=1e-2, abs=1e-3), site


def test_a_patch_is_differentiable_in_its_tensor(model: PreTrainedModel) -> None:
    leaf = torch.zeros(1, 1, HEADS, architecture(model).head_dim, requires_grad=True)
    with patch(model, {Site("head_out", 1): leaf}):
        model(TOKENS).logits.square().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_contexts_nest_in_the_order_of_entering() -> None:
    model = tiny_decoder("gpt2")
    site = Site("resid_post", 1)
    with capture(model, [site]) as before, patch(model, {site: torch.zeros_like}), capture(model, [site]) as after:
        logits(model)
    assert before[site].any()
    assert not after[site].any()
    with patch(model, {site: torch.ones_like}), patch(model, {site: lambda a: 2 * a}), capture(model, [site]) as both:
        logits(model)
    assert torch.equal(both[site], torch.full_like(both[site], 2.0))


def test_a_stream_written_at_two_places_of_a_block() -> None:
    model = tiny_decoder("llama")
    with capture(model, [Site("resid_mid", 1)]) as store:
        expected = logits(model, OTHER)
    edits = {Site("resid_mid", 1): store[Site("resid_mid", 1)], Site("resid_pre", 1): torch.zeros_like}
    with patch(model, edits):
        torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=0)


def test_captures_do_not_alias_the_model_and_a_later_pass_overwrites() -> None:
    model = tiny_decoder("gpt2")
    with capture(model, [Site("resid_pre", 0)]) as store:
        logits(model, OTHER)
        first = store[Site("resid_pre", 0)]
        logits(model)
    assert not torch.equal(first, store[Site("resid_pre", 0)])
    assert not store[Site("resid_pre", 0)].requires_grad
    site = Site("mlp_out", 0)
    with capture(model, [site]) as store, patch(model, {site: lambda activation: activation.zero_()}):
        logits(model)
    assert store[site].any()


def test_a_single_sequence_and_generation() -> None:
    model = tiny_decoder("gpt2")
    with capture(model, [Site("head_out", 0)]) as store:
        logits(model, TOKENS[:1, :1])
    assert store[Site("head_out", 0)].shape == (1, 1, HEADS, WIDTH // HEADS)
    with patch(model, {Site("resid_post", 1): lambda activation: activation * 2}):
        longer = model.generate(TOKENS[:1, :2], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert longer.shape[1] <= 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Site("residpre", 0), r"no site 'residpre'; did you mean 'resid_pre'\?"),
        (lambda: Site("resid_pre"), "resid_pre takes a layer"),
        (lambda: Site("final_resid", 2), "final_resid takes no layer"),
    ],
)
def test_sites_that_do_not_exist(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_a_layer_out_of_range(model: PreTrainedModel, layer: int) -> None:
    with pytest.raises(ValueError, match="the model has layers 0 to 2"), capture(model, [Site("attn_out", layer)]):
        pass


def test_parallel_blocks_have_no_middle() -> None:
    model = tiny_decoder("neox")
    with pytest.raises(ValueError, match="resid_mid does not exist here"), capture(model, [Site("resid_mid", 0)]):
        pass
    with (
        pytest.raises(ValueError, match="resid_mid does not exist here"),
        patch(model, {Site("resid_mid", 0): torch.zeros_like}),
    ):
        pass


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (torch.zeros(2, 5, WIDTH), r"edit of mlp_out in layer 1 has shape \(2, 5, 16\), the activation \(2, 6, 16\)"),
        (torch.zeros(WIDTH, dtype=torch.float64), "float64 on cpu, the activation torch.float32"),
        (lambda activation: None, "must give a tensor, not NoneType"),
        (lambda activation: activation[0, 0, :3], r"has shape \(3,\)"),
    ],
)
def test_edits_that_do_not_fit(edit: object, message: str) -> None:
    model = tiny_decoder("gpt2")
    with pytest.raises(ValueError, match=message), patch(model, {Site("mlp_out", 1): edit}):
        logits(model)
    assert hooks_left(model) == 0


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.ModuleDict({"h": nn.ModuleList()})])
def test_a_module_of_no_known_family(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="no transformer of a known family"):
        architecture(module)
