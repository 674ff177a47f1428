"""Formal explanations: bounds that nothing crosses, proofs checked by an exact solver, minimality by enumeration."""

import functools
import itertools

import highspy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from torch import Tensor, nn

from lib.methods import formal_explanations as fx
from lib.substrates.training import Plan, train

ROUNDING = 1e-9
exact = functools.partial(fx.verify_relu_milp, time_limit=30.0)


def dense(sizes: tuple[int, ...], seed: int = 0, scale: float = 1.5) -> nn.Sequential:
    """A random network of linear and ReLU layers."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        layer = nn.Linear(inner, outer)
        layer.weight.data = torch.randn(outer, inner, generator=generator) * scale / inner**0.5
        layer.bias.data = torch.randn(outer, generator=generator) * 0.3
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutional(seed: int = 0, channels: int = 2, side: int = 5) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(channels, 4, 3, stride=2, padding=1, groups=channels),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(4, 3, 2, dilation=2, padding=1), nn.ReLU()),
            nn.Flatten(),
            nn.LazyLinear(5),
        )
        model(torch.zeros(1, channels, side, side))
        return model


def convex_margins(n: int, seed: int, hidden: int = 6, classes: int = 3) -> nn.Sequential:
    """A network that decides for class 0 at the middle; every margin is a convex function of the input."""
    model = dense((n, hidden, classes), seed, scale=2.0)
    last = model[2]
    last.weight.data = last.weight.data.abs()
    last.weight.data[0] = 0.0
    last.bias.data = torch.zeros(classes)
    logits = model(torch.full((1, n), 0.5))[0]
    last.bias.data[0] = logits.max().item() + 0.35
    return model


def robust_sets(model: nn.Sequential, x: Tensor, eps: float) -> np.ndarray:
    """For every freed set, as an index (0 kept, 1 free) a feature: does the decision hold? Margins must be convex.

    A convex function is largest at a corner: all 3^n points with each feature at x, low or high are evaluated.
    """
    box = fx.CardinalityBox.around(x, eps)
    choices = torch.stack([box.x[0], box.lower[0], box.upper[0]])
    codes = torch.cartesian_prod(*[torch.arange(3)] * len(x))
    with torch.no_grad():
        logits = model.double()(choices.gather(0, codes.reshape(-1, len(x))))
    worst = (logits[:, 1:].amax(-1) - logits[:, 0]).numpy().reshape([3] * len(x))
    for axis in range(len(x)):
        fixed, low, high = np.moveaxis(worst, axis, 0)
        worst = np.moveaxis(np.stack([fixed, np.maximum(low, high)]), 0, axis)
    return worst <= 0


def extensions(free: Tensor) -> list[tuple[int, ...]]:
    """Every proper superset of a freed set."""
    sets = itertools.product(*[(1,) if f else (0, 1) for f in free.tolist()])
    return [s for s in sets if sum(s) > int(free.sum())]


def points_inside(domain: fx.CardinalityBox, count: int, generator: torch.Generator) -> Tensor:
    """Random points and corners (d, 2 count, c n) of each domain, at most m features moved outside A."""
    d, (c, n) = len(domain.max_changes), domain.x.shape
    luck = torch.rand(d, count, n, generator=generator).masked_fill(domain.free.expand(d, -1)[:, None], 2.0)
    allowed = (domain.free.sum(-1) + domain.max_changes)[:, None, None]
    moved = (luck.argsort(-1, descending=True).argsort(-1) < allowed)[:, :, None]
    place = torch.rand(d, count, c, n, generator=generator, dtype=torch.float64)
    inside = torch.cat([place, place.round()], dim=1) * (domain.upper - domain.lower) + domain.lower
    return torch.where(torch.cat([moved, moved], dim=1), inside, domain.x).flatten(2)


def check_bounds(model: nn.Sequential, domain: fx.CardinalityBox, seed: int = 0) -> float:
    """Largest amount by which a searched point crosses a bound, evaluated by the model itself."""
    spec = fx.margin_spec(fx.ReluNetwork.of(model, domain.shape), 0)
    bound = fx.crown_bounds(model, domain, spec)
    limit = domain.maximize(bound.weight, bound.bias)[:, None]
    random = points_inside(domain, 200, torch.Generator().manual_seed(seed))
    _, attacked = fx.attack(model, domain, spec, steps=15)
    crossed = []
    for points in (random, attacked):
        with torch.no_grad():
            logits = model.double()(points.reshape(-1, *domain.shape)).reshape(*points.shape[:2], -1)
        value = logits @ spec.mT
        linear = torch.einsum("dpn,drn->dpr", points, bound.weight.expand(len(points), -1, -1)) + bound.bias[:, None]
        crossed += [(value - linear).max().item(), (value - limit).max().item()]
    return max(crossed)


# Reading a network


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (dense((5, 7, 4, 3)), (5,)),
        (dense((4, 3)), (4,)),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 3), nn.ReLU()), (4,)),
        (nn.Sequential(nn.Flatten(), *[nn.Linear(6, 6), relu := nn.ReLU(), nn.Linear(6, 6), relu, relu]), (2, 3)),
        (convolutional(), (2, 5, 5)),
        (convolutional(channels=1, side=6), (1, 6, 6)),
    ],
)
def test_the_affine_form_is_the_network(model, shape):
    network = fx.ReluNetwork.of(model, shape)
    points = torch.randn(50, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(network(points.flatten(1)), model.double()(points), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2)), (4,), r"layer 1 \(Sigmoid\) can't be bounded"),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))), (4,), r"layer 0\.1 \(BatchNorm1d\)"),
        (nn.Linear(4, 2), (4,), "must be a torch.nn.Sequential, not Linear"),
        (dense((4, 3, 2)), (5,), "shape \\(5,\\) doesn't fit the model"),
        (nn.Sequential(nn.Linear(3, 2)), (4, 3), "must end in one vector of two or more logits"),
        (nn.Sequential(nn.Linear(3, 1)), (3,), "two or more logits"),
    ],
)
def test_a_model_that_cannot_be_bounded_is_named(model, shape, message):
    with pytest.raises(ValueError, match=message):
        fx.abstract_minimal_explanation(model, torch.full(shape, 0.5), 0.1)


def test_weights_that_are_not_numbers_are_refused():
    model = dense((4, 3, 2))
    model[0].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        fx.abstract_minimal_explanation(model, torch.full((4,), 0.5), 0.1)


# Domains and bounds


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(0, 5))
def test_maximum_over_a_domain_is_that_of_its_corners(seed, channels, changes):
    n, generator = 5, torch.Generator().manual_seed(seed)
    x = torch.rand(channels, 1, n, generator=generator)
    free = torch.rand(n, generator=generator) < 0.4
    domain = fx.CardinalityBox.around(x, 0.3).allow(free, changes)
    weight = torch.randn(2, channels * n, generator=generator, dtype=torch.float64)
    at_corner = torch.stack(
        [weight.unflatten(-1, (channels, n)) * end for end in (domain.x, domain.lower, domain.upper)]
    )
    best = at_corner.amax(0).sum(1)  # channels of a moved feature move independently
    slow = []
    for row in range(2):
        sets = [torch.tensor(moved) for moved in itertools.product((False, True), repeat=n)]
        values = [
            torch.where(s, best[row], at_corner[0, row].sum(0)).sum() for s in sets if (s & ~free).sum() <= changes
        ]
        slow.append(max(values))
    torch.testing.assert_close(domain.maximize(weight[None], torch.zeros(1, 2))[0], torch.stack(slow))


def test_domains_in_a_batch_equal_those_one_by_one():
    model, x = dense((6, 8, 8, 4), 3), torch.rand(6, generator=torch.Generator().manual_seed(1))
    box = fx.CardinalityBox.around(x, 0.2)
    free = torch.rand(9, 6, generator=torch.Generator().manual_seed(2)) < 0.4
    changes = torch.arange(9) % 4
    together = fx.certified_margin(model, box.allow(free, changes), 0)
    alone = torch.cat([fx.certified_margin(model, box.allow(f, int(m)), 0) for f, m in zip(free, changes, strict=True)])
    shared = fx.certified_margin(model, box.allow(free[0], changes), 0)
    repeated = fx.certified_margin(model, box.allow(free[0].expand(9, -1), changes), 0)
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(shared, repeated)


def test_a_pass_in_pieces_is_the_same(monkeypatch):
    model, x = dense((6, 8, 8, 4), 3), torch.rand(6, generator=torch.Generator().manual_seed(1))
    whole = fx.abstract_minimal_explanation(model, x, 0.2)
    monkeypatch.setattr(fx, "_CHUNK", 1)
    pieces = fx.abstract_minimal_explanation(model, x, 0.2)
    assert torch.equal(whole.kept, pieces.kept)


def test_a_linear_network_is_bounded_exactly():
    model, x = dense((4, 3)), torch.full((4,), 0.5)
    domain = fx.CardinalityBox.around(x, 0.1).allow(torch.ones(4))
    corners = x + 0.1 * (2 * torch.cartesian_prod(*[torch.arange(2.0)] * 4) - 1)
    logits = model.double()(corners.double())
    margin = (logits[:, 1:].amax(-1) - logits[:, 0]).max()
    torch.testing.assert_close(fx.certified_margin(model, domain, 0)[0], margin.detach(), rtol=1e-6, atol=1e-6)


def test_relu_lines_by_hand():
    """On [-1, 3] the chord is (3 z + 3) / 4; below, slope 1 leaves the smaller area; on [-3, 1] it is slope 0."""
    low, high = torch.tensor([[-1.0, -3.0]]).double(), torch.tensor([[3.0, 1.0]]).double()
    bias, weight = fx.relax_relu(torch.tensor([[[1.0, 0.0], [-1.0, -1.0]]]).double(), torch.zeros(1, 2), low, high)
    torch.testing.assert_close(weight, torch.tensor([[[0.75, 0.0], [-1.0, 0.0]]]).double())
    torch.testing.assert_close(bias, torch.tensor([[0.75, 0.0]]).double())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 9), min_size=0, max_size=3), st.floats(0.0, 2.0))
def test_no_searched_point_crosses_a_bound(seed, hidden, eps):
    generator = torch.Generator().manual_seed(seed)
    model, x = dense((7, *hidden, 3), seed), torch.rand(7, generator=generator)
    free = torch.rand(5, 7, generator=generator) < 0.5
    domain = fx.CardinalityBox.around(x, eps).allow(free, torch.tensor([0, 1, 2, 4, 7]))
    assert check_bounds(model, domain, seed) <= ROUNDING


@pytest.mark.parametrize("seed", range(5))
def test_no_searched_point_crosses_a_bound_of_a_convolution(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 5, 5, generator=generator)
    free = torch.rand(4, 25, generator=generator) < 0.3
    domain = fx.CardinalityBox.around(x, 0.3).allow(free, torch.tensor([0, 2, 5, 25]))
    assert check_bounds(convolutional(seed), domain, seed) <= ROUNDING


@pytest.mark.parametrize("changes", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_exact_maximum_lies_between_attack_and_bound(seed, changes):
    model, generator = dense((8, 6, 6, 3), seed), torch.Generator().manual_seed(seed)
    domain = fx.CardinalityBox.around(torch.rand(8, generator=generator), 0.25)
    domain = domain.allow(torch.rand(8, generator=generator) < 0.5, changes)
    network = fx.ReluNetwork.of(model, (8,))
    spec = fx.margin_spec(network, 0)
    bound = fx.crown_bounds(network, domain, spec)
    limit, (found, _) = domain.maximize(bound.weight, bound.bias)[0], fx.attack(network, domain, spec)
    crown_ranges = [(low[0], high[0]) for low, high in bound.preactivations]
    for row, above, below in zip(spec, limit, found[0], strict=True):
        value, point = fx.maximize_exactly(network, domain, row, fx.interval_ranges(network, domain))
        same, _ = fx.maximize_exactly(network, domain, row, crown_ranges)
        assert below - 1e-5 <= value <= above + 1e-5
        assert same == pytest.approx(value, abs=1e-5)
        assert (network(point) @ row).item() == pytest.approx(value, abs=1e-5)
        moved = ((point.reshape(domain.x.shape) - domain.x).abs() > 1e-7).any(0) & ~domain.free[0]
        assert moved.sum() <= changes


def test_exact_maximum_is_found_in_a_process_that_used_the_solver_with_other_threads():
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 2)
    solver.addVar(0.0, 1.0)
    solver.run()
    test_exact_maximum_against_a_fine_grid(0)


@pytest.mark.parametrize("seed", range(3))
def test_exact_maximum_against_a_fine_grid(seed):
    model, x = dense((2, 6, 6, 3), seed, scale=3.0), torch.tensor([0.4, 0.6])
    domain = fx.CardinalityBox.around(x, 0.3).allow(torch.ones(2))
    network = fx.ReluNetwork.of(model, (2,))
    axes = [torch.linspace(low, high, 601).double() for low, high in zip(domain.lower[0], domain.upper[0], strict=True)]
    logits = network(torch.cartesian_prod(*axes))
    for row in fx.margin_spec(network, 0):
        value, _ = fx.maximize_exactly(network, domain, row, fx.interval_ranges(network, domain))
        assert (logits @ row).max().item() == pytest.approx(value, abs=0.02)
        assert (logits @ row).max().item() <= value + 1e-6


# Batches


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_batches_against_all_subsets(seed, changes):
    n, generator = 9, torch.Generator().manual_seed(seed)
    weight = torch.randn(1, 3, n, generator=generator, dtype=torch.float64)
    free = torch.rand(n, generator=generator) < 0.2
    domain = fx.CardinalityBox.around(torch.rand(n, generator=generator), 0.3).allow(free, changes)
    budget = torch.rand(1, 3, generator=generator, dtype=torch.float64) * 2 - 0.1
    costs = domain.costs(weight)[0]
    bias = -budget - weight @ domain.x.flatten() - (costs * free).sum(-1)
    subsets = torch.cartesian_prod(*[torch.arange(2)] * n).bool()
    fits = (subsets.double() @ costs.mT <= budget[0]).all(-1) & ~(subsets & free).any(-1) & (subsets.sum(-1) <= changes)
    most = int(subsets[fits].sum(-1).amax()) if fits.any() else 0
    greedy, milp = (fx.free_batch(weight, bias, domain, selector)[0] for selector in fx.SELECTORS)
    for batch in (greedy, milp):
        assert not (batch & free).any()
        assert batch.sum() <= changes
        assert not batch.any() or (costs[:, batch].sum(-1) <= budget[0]).all()
    assert greedy.sum() <= milp.sum() == most <= fx.batch_limit(weight, bias, domain)[0]


def test_greedy_prefix_by_hand():
    """Costs 1, 2, 3, 4 and a budget of 6: the three cheapest fit, and m = 2 leaves the two cheapest."""
    weight = torch.tensor([[[4.0, 1.0, 3.0, 2.0]]]).double()
    domain = fx.CardinalityBox.around(torch.zeros(4), 1.0, limits=(-1.0, 1.0)).allow(
        torch.zeros(4), torch.tensor([4, 2])
    )
    batches = fx.free_batch(weight, torch.tensor([[-6.001]]).double(), domain)
    assert batches.tolist() == [[False, True, True, True], [False, True, False, True]]
    assert not fx.free_batch(weight, torch.tensor([[0.5]]).double(), domain).any()


# Explanations


@pytest.mark.parametrize("selector", fx.SELECTORS)
@pytest.mark.parametrize("seed", range(6))
def test_explanations_are_proved_and_minimal_for_the_bound(seed, selector):
    model, x = dense((10, 8, 8, 3), seed), torch.rand(10, generator=torch.Generator().manual_seed(seed))
    explanation = fx.abstract_minimal_explanation(model, x, 0.25, selector)
    box, free = fx.CardinalityBox.around(x, 0.25), ~explanation.kept
    assert exact(model, box.allow(free), explanation.label, independent=True).status == "safe"
    for j in explanation.kept.nonzero()[:, 0]:
        further = box.allow(free.index_fill(0, j, True))
        assert fx.verify_crown(model, further, explanation.label).status == "unknown"
    assert explanation.rounds == sorted(explanation.rounds)
    assert explanation.rounds[-1] == free.sum()
    first = fx.abstract_minimal_explanation(model, x, 0.25, selector, refine=False)
    assert first.size >= explanation.size


@pytest.mark.parametrize(("n", "eps"), [(6, 0.2), (9, 0.15), (12, 0.17), (12, 0.2)])
def test_minimality_against_all_subsets(n, eps):
    model, x = convex_margins(n, seed=n), torch.full((n,), 0.5)
    robust = robust_sets(model, x, eps)
    abstract = fx.abstract_minimal_explanation(model, x, eps, label=0)
    gap = fx.minimality_gap(model, x, eps, abstract)
    sets = {"abstract": abstract}
    for search in fx.SEARCHES:
        sets[search] = fx.deletion_explanation(model, x, eps, exact, search=search)
        undecided = gap.undecided.nonzero()[:, 0]
        sets[search + " refined"] = fx.deletion_explanation(
            model, x, eps, exact, undecided, search=search, start=abstract.kept
        )
    assert 0 < sets["sequential"].size < n, "the case should be neither robust nor hopeless"
    for name, explanation in sets.items():
        free = (~explanation.kept).int()
        assert robust[tuple(free.tolist())], name
        if name != "abstract":
            assert explanation.complete
            assert not any(robust[larger] for larger in extensions(~explanation.kept)), name
    freed = ~abstract.kept
    more = [sum(s) - int(freed.sum()) for s in extensions(freed) if robust[s]]
    assert max(more, default=0) <= gap.distance <= int(gap.undecided.sum())
    for j in gap.necessary.nonzero()[:, 0]:
        assert not robust[tuple(freed.index_fill(0, j, True).int().tolist())]


def test_freeing_every_feature_of_a_robust_input_needs_one_pass():
    model, x = convex_margins(6, 0), torch.full((6,), 0.5)
    for explanation in (
        fx.abstract_minimal_explanation(model, x, 1e-4),
        fx.deletion_explanation(model, x, 1e-4, exact, search="binary"),
        fx.deletion_explanation(model, x, 1e-4, exact, search="quickxplain"),
    ):
        assert explanation.size == 0
        assert len(explanation.rounds) == 2
    gap = fx.minimality_gap(model, x, 1e-4, explanation)
    assert not gap.necessary.any()
    assert gap.distance == 0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(9)))
def test_the_order_of_the_features_plays_no_part(seed, order):
    model, x = dense((9, 7, 7, 3), seed), torch.rand(9, generator=torch.Generator().manual_seed(seed))
    shuffled = nn.Sequential(nn.Linear(9, 7), *model[1:])
    shuffled[0].weight.data, shuffled[0].bias.data = model[0].weight.data[:, order], model[0].bias.data
    kept = fx.abstract_minimal_explanation(model, x, 0.2).kept
    assert torch.equal(fx.abstract_minimal_explanation(shuffled, x[order], 0.2).kept, kept[order])


def test_channels_of_a_pixel_are_one_feature():
    model, x = convolutional(1), torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(1))
    explanation = fx.abstract_minimal_explanation(model, x, 0.5)
    assert explanation.kept.shape == (25,)
    assert 0 < explanation.size < 25
    domain = fx.CardinalityBox.around(x, 0.5).allow(~explanation.kept)
    assert exact(model, domain, explanation.label, independent=True).status == "safe"


def test_fewer_cardinalities_still_prove():
    model, x = dense((10, 8, 3), 2), torch.rand(10, generator=torch.Generator().manual_seed(2))
    explanation = fx.abstract_minimal_explanation(model, x, 0.2, cardinalities=3)
    domain = fx.CardinalityBox.around(x, 0.2).allow(~explanation.kept)
    assert exact(model, domain, explanation.label, independent=True).status == "safe"


def test_wine_is_explained_by_a_network_trained_on_it():
    wine = load_wine()
    data = torch.tensor((wine.data - wine.data.min(0)) / np.ptp(wine.data, axis=0), dtype=torch.float32).clamp(0, 1)
    labels = torch.tensor(wine.target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(13, 10), nn.ReLU(), nn.Linear(10, 3))

    def draw(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(data), (size,), generator=generator)
        return data[rows], labels[rows]

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    train(model, draw, loss, Plan(150, 0.02), generator=torch.Generator().manual_seed(0))
    assert (model(data).argmax(-1) == labels).float().mean() > 0.9
    sizes = []
    for x, label in zip(data[::40], labels[::40], strict=True):
        explanation = fx.abstract_minimal_explanation(model, x, 0.3, label=int(label))
        sizes.append(explanation.size)
        domain = fx.CardinalityBox.around(x, 0.3).allow(~explanation.kept)
        assert exact(model, domain, int(label), independent=True).status == "safe"
        best, _ = fx.attack(model, domain, fx.margin_spec(fx.ReluNetwork.of(model, (13,)), int(label)))
        assert (best <= 0).all()
    assert max(sizes) > 0


# Bad input and edges


@pytest.mark.parametrize(
    ("x", "eps", "message"),
    [
        (torch.tensor([0.1, float("nan"), 0.3]), 0.1, "NaN"),
        (torch.tensor([0.1, 1.7, 0.3]), 0.1, "leaves the limits"),
        (torch.zeros(1, 1, 1, 3), 0.1, "one input"),
        (torch.zeros(0), 0.1, "one input"),
        (torch.zeros(4), 0.1, "doesn't fit the model"),
        (torch.zeros(3), -0.1, "finite radius"),
        (torch.zeros(3), float("inf"), "finite radius"),
    ],
)
def test_bad_inputs_are_refused(x, eps, message):
    model = dense((3, 4, 2))
    with pytest.raises(ValueError, match=message):
        fx.abstract_minimal_explanation(model, x, eps)
    with pytest.raises(ValueError, match=message):
        fx.deletion_explanation(model, x, eps, exact)


def test_a_misclassified_input_is_refused():
    model, x = dense((3, 4, 2)), torch.full((3,), 0.5)
    wrong = 1 - int(model(x).argmax())
    for explain in (fx.abstract_minimal_explanation, functools.partial(fx.deletion_explanation, verifier=exact)):
        with pytest.raises(ValueError, match=f"the model says {1 - wrong} here, not {wrong}"):
            explain(model, x, 0.1, label=wrong)


def test_radius_zero_needs_nothing_and_a_huge_radius_is_the_whole_range():
    model, x = dense((6, 8, 3), 1), torch.rand(6, generator=torch.Generator().manual_seed(0))
    assert fx.abstract_minimal_explanation(model, x, 0.0).size == 0
    whole, huge = (fx.abstract_minimal_explanation(model, x, eps) for eps in (1.0, 1e6))
    assert torch.equal(whole.kept, huge.kept)
    domain = fx.CardinalityBox.around(x, 1e6).allow(~huge.kept)
    assert domain.lower.min() == 0
    assert domain.upper.max() == 1
    assert exact(model, domain, huge.label, independent=True).status == "safe"


def test_masks_that_do_not_fit_are_refused():
    box = fx.CardinalityBox.around(torch.zeros(3), 0.1)
    for free, changes in ((torch.zeros(4), 0), (torch.zeros(2, 3), torch.zeros(3)), (torch.zeros(3), 4)):
        with pytest.raises(ValueError, match="over the 3 features"):
            box.allow(free, changes)
    with pytest.raises(ValueError, match="one domain at a time"):
        exact(dense((3, 4, 2)), box.allow(torch.zeros(2, 3)), 0)


def test_unknown_names_name_the_nearest():
    model, x = dense((3, 4, 2)), torch.full((3,), 0.5)
    with pytest.raises(ValueError, match="did you mean 'greedy'"):
        fx.abstract_minimal_explanation(model, x, 0.1, "gredy")
    with pytest.raises(ValueError, match="did you mean 'binary'"):
        fx.deletion_explanation(model, x, 0.1, exact, search="binari")
    with pytest.raises(ValueError, match="cardinalities"):
        fx.abstract_minimal_explanation(model, x, 0.1, cardinalities=0)


def test_a_network_read_for_another_shape_is_refused():
    network = fx.ReluNetwork.of(dense((3, 4, 2)), (3,))
    with pytest.raises(ValueError, match="read for inputs of shape"):
        fx.abstract_minimal_explanation(network, torch.zeros(1, 3), 0.1)


def test_a_verifier_that_gives_up_leaves_features_kept():
    model, x = dense((3, 4, 2)), torch.full((3,), 0.5)
    explanation = fx.deletion_explanation(model, x, 0.1, lambda *_: fx.Verdict("unknown"))
    assert explanation.size == 3
    assert not explanation.complete


def test_no_time_gives_no_verdict():
    model, x = dense((30, 40, 40, 2), 1, scale=3.0), torch.full((30,), 0.5)
    domain = fx.CardinalityBox.around(x, 0.5).allow(torch.ones(30))
    label = int(model(x).argmax())
    assert fx.verify_relu_milp(model, domain, label, time_limit=1e-3, independent=True).status == "unknown"


# The exact claims can fail


@pytest.mark.mutation("C1")
def test_bounds_that_forget_the_cardinality_break_the_proof(monkeypatch):
    """Bounds of the box over A alone are no bounds where m others move, and free what can't be free."""
    sound, broken = [], []
    forget = fx.crown_bounds
    for seed in range(12):
        model, x = (
            dense((10, 16, 16, 3), seed, scale=3.0),
            torch.rand(10, generator=torch.Generator().manual_seed(seed)),
        )
        for verdicts, bounds in (
            (sound, forget),
            (broken, lambda net, dom, spec: forget(net, dom.allow(dom.free), spec)),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(fx, "crown_bounds", bounds)
                explanation = fx.abstract_minimal_explanation(model, x, 0.3, refine=False)
            domain = fx.CardinalityBox.around(x, 0.3).allow(~explanation.kept)
            verdicts.append(exact(model, domain, explanation.label, independent=True).status)
    assert set(sound) == {"safe"}
    assert "unsafe" in broken


@pytest.mark.mutation("C2")
def test_a_line_below_the_relu_breaks_the_bounds(monkeypatch):
    x = torch.rand(7, generator=torch.Generator().manual_seed(0))
    domain = fx.CardinalityBox.around(x, 0.3).allow(torch.ones(7))
    model, sound = dense((7, 9, 9, 3), 0), fx.relax_relu
    assert check_bounds(model, domain) <= ROUNDING
    monkeypatch.setattr(fx, "relax_relu", lambda w, b, low, high: (b, sound(w, b, low, high)[1]))  # no intercept
    assert check_bounds(model, domain) > 0.01


@pytest.mark.mutation("C3")
def test_a_greedy_choice_that_minds_one_class_only_beats_the_optimum():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1, 4, 12, generator=generator, dtype=torch.float64)
    domain = fx.CardinalityBox.around(torch.full((12,), 0.5), 0.3).allow(torch.zeros(12), 12)
    bias = -weight @ domain.x.flatten() - 0.8
    greedy, best = (fx.free_batch(weight, bias, domain, selector)[0] for selector in fx.SELECTORS)
    costs = domain.costs(weight)[0]
    assert greedy.sum() <= best.sum()
    assert (costs[:, greedy].sum(-1) <= 0.8).all()
    blind = fx.free_batch(weight[:, :1], bias[:, :1], domain)[0]
    assert blind.sum() > best.sum()
    assert not (costs[:, blind].sum(-1) <= 0.8).all()


@pytest.mark.mutation("C4")
def test_a_set_that_fits_the_budget_is_no_witness_of_asymmetry():
    """f_1 - f_0 = relu(x_1 + x_2 - 1.5): either feature may go up to 1, both may not."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2))
    model[0].weight.data, model[0].bias.data = torch.tensor([[1.0, 1.0]]), torch.tensor([-1.5])
    model[2].weight.data, model[2].bias.data = torch.tensor([[0.0], [1.0]]), torch.tensor([0.1, 0.0])
    box = fx.CardinalityBox.around(torch.zeros(2), 1.0)

    def witness(together: Tensor) -> bool:
        singles = fx.certified_margin(model, box.allow(torch.eye(2)[together.bool()]), 0)
        return bool((singles <= 0).all()) and exact(model, box.allow(together), 0).status == "unsafe"

    assert witness(torch.tensor([1, 1]))
    batch = ~fx.abstract_minimal_explanation(model, torch.zeros(2), 1.0).kept
    assert batch.sum() == 1
    assert not witness(batch)
