"""Coverage by brute force, the two-hop law, cosine gaps, patching, and tiny decoders that are really trained."""

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.sparse import csr_array
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MambaForCausalLM

from lib.methods import pattern_matching as pm
from lib.substrates.completions import small_decoder
from lib.substrates.training import Plan

Observed = tuple[np.ndarray, np.ndarray]


def observed(task: str = "two_hop", n: int = 4, size: int = 16, seed: int = 0) -> Observed:
    return pm.make_compositional_dataset(task, n, size, 0.8, seed=seed).observed


def equivalent(known: dict, subset: tuple, a: tuple, b: tuple, k: int, n: int, length: int) -> bool:
    """Definition of k-equivalence, context by context."""
    rest = [position for position in range(length) if position not in subset]
    shared = agree = 0
    for context in product(range(n), repeat=len(rest)):
        items = []
        for fragment in (a, b):
            item = dict(zip(rest, context, strict=True)) | dict(zip(subset, fragment, strict=True))
            items.append(tuple(item[position] for position in range(length)))
        if all(item in known for item in items):
            shared += 1
            agree += known[items[0]] == known[items[1]]
    return shared >= k and shared == agree


def explicit_graph(x: np.ndarray, y: np.ndarray, k: int, n: int) -> nx.Graph:
    """G(D, k) edge by edge."""
    length = x.shape[1]
    known = {tuple(row): int(target) for row, target in zip(x.tolist(), y, strict=True)}
    graph = nx.Graph()
    graph.add_nodes_from(product(range(n), repeat=length))
    for size in range(1, length):
        for subset in combinations(range(length), size):
            for a, b in combinations(product(range(n), repeat=size), 2):
                if equivalent(known, subset, a, b, k, n, length):
                    for node in graph:
                        if tuple(node[position] for position in subset) == a:
                            other = list(node)
                            for position, token in zip(subset, b, strict=True):
                                other[position] = token
                            graph.add_edge(node, tuple(other))
    return graph


def brute_force_cover(x: np.ndarray, y: np.ndarray, k: int, n: int) -> np.ndarray:
    graph = explicit_graph(x, y, k, n)
    reached = set().union(*(nx.node_connected_component(graph, tuple(row)) for row in x.tolist()))
    return np.array([node in reached for node in product(range(n), repeat=x.shape[1])])


# The checks of the exact claims, as the notebook makes them; the mutation tests see them fail.


def monotone_violations() -> int:
    graph = pm.SubstitutionGraph(*observed(n=5, size=60), n_tokens=5)
    cover = np.stack([graph.covered(k) for k in range(1, 5)])
    return int((cover[1:] & ~cover[:-1]).sum() + (~cover[:, graph.observed]).sum())


def brute_force_mismatches() -> int:
    wrong = 0
    for task, size, k in [("two_hop", 20, 1), ("two_hop", 25, 2), ("non_tree", 20, 1), ("non_tree", 24, 2)]:
        x, y = observed(task, 4, size)
        wrong += int((pm.SubstitutionGraph(x, y, n_tokens=4).covered(k) != brute_force_cover(x, y, k, 4)).sum())
    return wrong


def changed_targets() -> int:
    """Substitutions within an equivalence class of the *whole* table that change the target."""
    x = pm.all_inputs(4, 3)
    y = pm.compute("two_hop", pm.draw_candidates("two_hop", 4, 1.0, np.random.default_rng(3))[0], x)[0][:, -1]
    component = pm.SubstitutionGraph(x, y).components(1)
    return sum(len(np.unique(y[component == label])) - 1 for label in np.unique(component))


@pytest.mark.parametrize("check", [monotone_violations, brute_force_mismatches, changed_targets])
def test_exact_claims(check: Callable[[], int]) -> None:
    assert check() == 0


@pytest.mark.mutation("C1a")
def test_coverage_by_exactly_k_contexts_is_not_monotone(monkeypatch: pytest.MonkeyPatch) -> None:
    def exactly(self: pm.Evidence, k: int) -> np.ndarray:
        pairs = self.shared.tocoo()
        equal = pairs.data == k
        return pm._connected(pairs.row[equal], pairs.col[equal], len(self.fragments))

    monkeypatch.setattr(pm.Evidence, "classes", exactly)
    assert monotone_violations() > 0


def ignore_contradictions(inputs: np.ndarray, targets: np.ndarray, subset: tuple[int, ...]) -> pm.Evidence:
    rest = [position for position in range(inputs.shape[1]) if position not in subset]
    fragments, row = np.unique(inputs[:, subset], axis=0, return_inverse=True)
    column = np.unique(inputs[:, rest], axis=0, return_inverse=True)[1]
    seen = csr_array((np.ones(len(row), np.int64), (row.ravel(), column.ravel())))
    return pm.Evidence(fragments, (seen @ seen.T).tocsr())


@pytest.mark.mutation("C1b")
@pytest.mark.mutation("C1c")
def test_pairs_that_disagree_somewhere_must_not_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pm.Evidence, "of", staticmethod(ignore_contradictions))
    assert brute_force_mismatches() > 0
    assert changed_targets() > 0


# ---------------------------------------------------------------------------------------------------------------------
# coverage


def test_the_example_by_hand() -> None:
    # (0, 0) and (1, 1) agree after 0 and 1, so what follows the one in context 2 is known for the other.
    x = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 2], [2, 2, 0]])
    y = np.array([0, 0, 1, 1, 2, 2])
    classes = pm.functional_equivalence_classes(x, y, (0, 1), 2)
    assert classes[0, 0] == classes[1, 1] != classes[2, 2]
    assert pm.k_cutoff(x, y, np.array([[1, 1, 2], [2, 2, 2], [0, 0, 0]]), 5, [(0, 1)]).tolist() == [2, 0, 5]
    assert pm.k_coverage(x, y, np.array([[1, 1, 2]]), 3).tolist() == [False]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_classes_are_those_of_the_definition(data: st.DataObject) -> None:
    n, length = 3, 3
    rows = data.draw(st.lists(st.integers(0, n**length - 1), min_size=1, max_size=20, unique=True))
    x = pm.all_inputs(n, length)[rows]
    y = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))))
    k, subset = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(pm.proper_subsets(length)))
    known = {tuple(row): int(target) for row, target in zip(x.tolist(), y, strict=True)}
    classes = pm.functional_equivalence_classes(x, y, subset, k)
    graph = nx.Graph()
    graph.add_nodes_from(classes)
    graph.add_edges_from((a, b) for a, b in combinations(classes, 2) if equivalent(known, subset, a, b, k, n, length))
    expected = {frozenset(component) for component in nx.connected_components(graph)}
    found = {frozenset(f for f in classes if classes[f] == label) for label in classes.values()}
    assert found == expected


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 3))
def test_coverage_is_the_search_on_the_explicit_graph(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    x = pm.all_inputs(3, length)[rng.permutation(3**length)[: 3 + 3 * length]]
    y = rng.integers(2, size=len(x))
    for k in (1, 2):
        np.testing.assert_array_equal(pm.SubstitutionGraph(x, y, n_tokens=3).covered(k), brute_force_cover(x, y, k, 3))


def test_coverage_does_not_depend_on_order_names_or_copies() -> None:
    x, y = observed(size=30)
    queries = pm.all_inputs(4, 3)
    cutoffs = pm.k_cutoff(x, y, queries, 6)
    rng = np.random.default_rng(1)
    order, names = rng.permutation(len(x)), rng.permutation(4)
    np.testing.assert_array_equal(pm.k_cutoff(x[order], y[order], queries, 6), cutoffs)
    np.testing.assert_array_equal(pm.k_cutoff(names[x], 7 * y + 3, names[queries], 6), cutoffs)
    np.testing.assert_array_equal(pm.k_cutoff(np.repeat(x, 2, 0), np.repeat(y, 2), queries, 6), cutoffs)
    np.testing.assert_array_equal(pm.k_cutoff(x, y, queries[5:6], 6), cutoffs[5:6])  # a batch of one
    assert (pm.k_cutoff(x, y, x, 6) == 6).all()
    by_k = [pm.k_coverage(x, y, queries, k) for k in range(1, 7)]
    np.testing.assert_array_equal(
        cutoffs, [max([0, *(k for k, c in enumerate(row, 1) if c)]) for row in zip(*by_k, strict=True)]
    )


def test_more_data_of_a_structured_task_can_only_add_evidence() -> None:
    # With I = {1, 2} and one bridge everywhere nothing contradicts, so that the cover grows with the data.
    x = pm.all_inputs(4, 3)[np.random.default_rng(2).permutation(64)]
    y = x[:, 2] % 3
    sizes = [pm.SubstitutionGraph(x[:m], y[:m], n_tokens=4, subsets=[(0, 1)]).covered(2).sum() for m in (8, 20, 40, 64)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 64


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((0, 3), int), np.zeros(0, int), "N >= 1"),
        (np.zeros((2, 1), int), np.zeros(2, int), "l >= 2"),
        (np.zeros((2, 3), int), np.zeros(3, int), "targets"),
        (np.full((1, 3), np.nan), np.zeros(1, int), "whole numbers"),
        (np.full((1, 3), -1), np.zeros(1, int), "not negative"),
        (np.zeros((2, 3), int), np.array([0, 1]), r"\[0, 0, 0\] has two targets"),
        (np.full((1, 3), 200), np.zeros(1, int), "fewer tokens"),
    ],
)
def test_bad_observations_are_refused(inputs: np.ndarray, targets: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pm.SubstitutionGraph(inputs, targets)


def test_bad_questions_are_refused() -> None:
    x, y = observed()
    for k in (0, -1):
        for ask in (pm.k_coverage, pm.k_cutoff):
            with pytest.raises(ValueError, match="at least 1"):
                ask(x, y, x, k)
        with pytest.raises(ValueError, match="at least 1"):
            pm.functional_equivalence_classes(x, y, (0, 1), k)
    for subset in ((), (0, 1, 2), (3,), (0, 0)):
        with pytest.raises(ValueError, match="index set"):
            pm.functional_equivalence_classes(x, y, subset, 1)
    with pytest.raises(ValueError, match="whole numbers"):
        pm.k_coverage(x, y, x[:, :2], 1)
    with pytest.raises(ValueError, match="larger n_tokens"):
        pm.SubstitutionGraph(x, y, n_tokens=4).codes(np.array([[0, 0, 9]]))


# ---------------------------------------------------------------------------------------------------------------------
# data


@pytest.mark.parametrize("task", pm.TASKS)
def test_every_task_computes_its_formula(task: str) -> None:
    n = 3
    tables = pm.draw_candidates(task, n, 1.0, np.random.default_rng(0))[0]
    formula = {
        "two_hop": lambda f, g, x: g[f[x[0], x[1]], x[2]],
        "parallel_two_hop": lambda f, g, h, x: h[f[x[0], x[1]], g[x[2], x[3]]],
        "three_hop": lambda f, g, h, x: h[g[f[x[0], x[1]], x[2]], x[3]],
        "five_hop": lambda a, b, c, d, e, x: e[d[c[b[a[x[0], x[1]], x[2]], x[3]], x[4]], x[5]],
        "non_tree": lambda f, g, x: g[f[x[0], x[1]], x[1], x[2]],
    }[task]
    inputs = pm.all_inputs(n, pm.task_length(task))[::7]
    values, _ = pm.compute(task, tables, inputs)
    assert values[:, -1].tolist() == [formula(*tables, x) for x in inputs]
    if task == "two_hop":
        assert values[:, 0].tolist() == [tables[0][x[0], x[1]] for x in inputs]


@pytest.mark.parametrize(("task", "n"), [("two_hop", 8), ("non_tree", 8), ("three_hop", 5)])
def test_test_types_say_which_calls_training_never_made(task: str, n: int) -> None:
    data = pm.make_compositional_dataset(task, n, 60, seed=2, per_type=40)
    length = data.length
    train_calls = pm.compute(task, data.tables, data.train[:, :length])[1]
    test_calls = pm.compute(task, data.tables, data.test[:, :length])[1]
    for row, kind in zip(test_calls, data.test_type, strict=True):
        assert kind == sum((call not in train_calls[:, j]) << j for j, call in enumerate(row))
    items = {tuple(row) for row in data.train[:, :length]}
    assert len(items) == 60
    assert not items & {tuple(row) for row in data.test[:, :length]}
    assert np.bincount(data.test_type).max() <= 40


def test_supervision_changes_only_what_is_written() -> None:
    direct, cot, fake = (pm.make_compositional_dataset("three_hop", 5, 50, supervision=s) for s in pm.SUPERVISIONS)
    assert (direct.train.shape[1], cot.train.shape[1], fake.train.shape[1]) == (5, 7, 7)
    for other in (cot, fake):
        np.testing.assert_array_equal(other.train[:, [0, 1, 2, 3, -1]], direct.train)
    np.testing.assert_array_equal(cot.train[:, 4:6], cot.bridges(cot.train[:, :4]))
    assert (fake.train[:, 4:6] == 5).all()
    labels = cot.completions().labels
    assert (labels[:, :4] < 0).all()
    np.testing.assert_array_equal(labels[:, 4:].numpy(), cot.train[:, 4:])


def test_training_sets_of_one_seed_are_nested_and_seeds_differ() -> None:
    small, large, other = (
        pm.make_compositional_dataset("two_hop", 8, n, seed=s).train for n, s in [(20, 0), (60, 0), (60, 1)]
    )
    np.testing.assert_array_equal(small, large[:20])
    assert (large != other).any()
    everything = pm.make_compositional_dataset("two_hop", 4, 64, 1.0)
    assert not len(everything.test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "two_hops"}, "did you mean 'two_hop'"),
        ({"supervision": "chain"}, "no supervision"),
        ({"n_tokens": 1}, "too small"),
        ({"n_tokens": 500}, "fewer tokens"),
        ({"p_seen": 0.0}, r"\(0, 1\]"),
        ({"p_seen": 1.1}, r"\(0, 1\]"),
        ({"p_seen": float("nan")}, r"\(0, 1\]"),
        ({"n_train": 0}, "n_train must lie"),
        ({"n_train": 5000}, "lower n_train"),
        ({"per_type": 0}, "per_type"),
    ],
)
def test_bad_data_sets_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pm.make_compositional_dataset(**({"task": "two_hop", "n_tokens": 8, "n_train": 50} | changes))


# ---------------------------------------------------------------------------------------------------------------------
# the law, guesses, fits


@pytest.mark.parametrize("k", [1, 2])
def test_two_hop_share_is_coverage_by_true_classes(k: int) -> None:
    n, size = 6, 60
    data = pm.make_compositional_dataset("two_hop", n, size, 0.9, seed=4, per_type=1000)
    x, _ = data.observed
    bridge = data.bridges(x)[:, 0]
    graph = nx.Graph()
    graph.add_nodes_from({(a, b) for a, b, _ in x.tolist()})
    of = {(a, b): int(data.tables[0][a, b]) for a, b in graph}
    contexts = {f: {c for a, b, c in x.tolist() if (a, b) == f} for f in graph}
    graph.add_edges_from(
        (f, g) for f, g in combinations(graph, 2) if of[f] == of[g] and len(contexts[f] & contexts[g]) >= k
    )
    wanted = data.test[data.test_type == 0]
    reached = [
        any(int(c) in contexts[g] for g in nx.node_connected_component(graph, (int(a), int(b))))
        for a, b, c, _ in wanted
    ]
    assert pm.two_hop_share(x, bridge, k, n) == pytest.approx(np.mean(reached))
    counted = [len(contexts[int(a), int(b)]) > k for a, b, _, _ in wanted]
    assert pm.two_hop_share(x, bridge, k, n, "count") == pytest.approx(np.mean(counted))


def test_true_classes_cover_no_more_than_observed_ones() -> None:
    data = pm.make_compositional_dataset("two_hop", 8, 200, seed=1)
    x, y = data.observed
    test = data.test[data.test_type == 0][:, :3]
    share = pm.two_hop_share(x, data.bridges(x)[:, 0], 2, 8)
    assert share <= pm.k_coverage(x, y, test, 2, [(0, 1)]).mean() <= pm.k_coverage(x, y, test, 2).mean()


@pytest.mark.parametrize("rule", ["substitution", "count"])
def test_sample_complexity_is_where_the_threshold_is_crossed(rule: str) -> None:
    tables, x = pm.draw_candidates("two_hop", 8, 0.7, np.random.default_rng(5))
    bridge = tables[0][x[:, 0], x[:, 1]]
    needed = pm.coverage_sample_complexity(8, 2, 0.9, 5, rule=rule)
    assert pm.two_hop_share(x[:needed], bridge[:needed], 2, 8, rule) >= 0.9 or needed == len(x)
    assert pm.two_hop_share(x[: needed - 1], bridge[: needed - 1], 2, 8, rule) < 0.9
    assert pm.coverage_sample_complexity(8, 1, 0.9, 5, rule=rule) <= needed


def test_no_item_to_predict_is_a_share_of_nought() -> None:
    assert pm.two_hop_share(np.array([[0, 0, 0]]), np.array([0]), 1, 2) == 0
    for bad in (0.0, 1.5):
        with pytest.raises(ValueError, match="threshold"):
            pm.coverage_sample_complexity(8, 1, bad)
    with pytest.raises(ValueError, match="no rule"):
        pm.coverage_sample_complexity(8, 1, rule="luck")
    with pytest.raises(ValueError, match="at least 1"):
        pm.coverage_sample_complexity(8, 0)


def test_a_power_law_is_recovered() -> None:
    exponent, r2 = pm.fit_power_law([16, 24, 48], 3.7 * np.array([16, 24, 48]) ** 2.25)
    assert exponent == pytest.approx(2.25)
    assert r2 == pytest.approx(1)
    assert pm.fit_power_law([1, 2], [3, 3]) == (pytest.approx(0, abs=1e-12), 1.0)
    for bad in ([1, 1], [0, 1]):
        with pytest.raises(ValueError, match="power law"):
            pm.fit_power_law(bad, [1, 2])


def test_modal_guess_counts() -> None:
    keys, targets = np.array([[0, 1], [0, 1], [0, 1], [2, 2]]), np.array([5, 4, 5, 4])
    queries = np.array([[0, 1], [2, 2], [9, 9]])
    assert pm.modal_guess(keys, targets, queries).tolist() == [5, 4, 4]  # 4 and 5 are as frequent: the smaller
    assert pm.modal_guess(keys, targets, queries[:0]).tolist() == []
    with pytest.raises(ValueError, match="keys"):
        pm.modal_guess(keys, targets, queries[:, :1])


# ---------------------------------------------------------------------------------------------------------------------
# representations


def test_gap_of_known_clusters() -> None:
    # Centred, two points on a line have cosine -1 across and 1 within.
    line = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])
    assert pm.intra_inter_cosine_gap(line, [0, 0, 1, 1]) == pytest.approx(2)
    triangle = torch.eye(3).repeat_interleave(2, 0)
    gap = pm.intra_inter_cosine_gap(triangle, [0, 0, 1, 1, 2, 2])
    assert gap == pytest.approx(1.5)
    assert pm.intra_inter_cosine_gap(10 * triangle + 7, ["a", "a", "b", "b", "c", "c"]) == pytest.approx(gap, abs=1e-5)
    alone = torch.cat([triangle, torch.tensor([[5.0, -9, 2]])])
    assert pm.intra_inter_cosine_gap(alone, [0, 0, 1, 1, 2, 2, 3]) == pytest.approx(gap)


def test_gap_is_that_of_two_loops_and_vanishes_without_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, groups = torch.randn(40, 6, generator=generator), np.arange(40) % 5
    unit = vectors - vectors.mean(0)
    unit = unit / unit.norm(dim=1, keepdim=True)
    cosines: dict[bool, list[float]] = {True: [], False: []}
    for i, j in combinations(range(40), 2):
        cosines[bool(groups[i] == groups[j])].append(float(unit[i] @ unit[j]))
    expected = np.mean(cosines[True]) - np.mean(cosines[False])
    assert pm.intra_inter_cosine_gap(vectors, groups) == pytest.approx(expected, abs=1e-6)
    order = torch.randperm(40, generator=generator)
    assert pm.intra_inter_cosine_gap(vectors[order], groups[order]) == pytest.approx(expected, abs=1e-6)
    assert abs(expected) < 0.15


@pytest.mark.parametrize(
    ("vectors", "groups", "message"),
    [
        (torch.ones(3, 2), [0, 1, 2], "two groups"),
        (torch.ones(4, 2), [0, 0, 0, 0], "two groups"),
        (torch.zeros(0, 2), [], "two groups"),
        (torch.full((4, 2), torch.nan), [0, 0, 1, 1], "finite"),
        (torch.ones(4), [0, 0, 1, 1], "give finite vectors"),
        (torch.ones(4, 2), [0, 0, 1], "give finite vectors"),
    ],
)
def test_bad_groups_are_refused(vectors: torch.Tensor, groups: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pm.intra_inter_cosine_gap(vectors, groups)


def test_contrast_pairs_differ_in_the_second_token_alone() -> None:
    data = pm.make_compositional_dataset("two_hop", 8, 200)
    base, source = pm.contrast_pairs(data, np.random.default_rng(0), 50)
    assert base.shape == source.shape == (50, 4)
    assert ((base == source).sum(0)[[0, 2]] == 50).all()
    assert (base[:, -1] != source[:, -1]).all()
    assert (data.bridges(base[:, :3]) != data.bridges(source[:, :3])).all()
    assert {tuple(row) for row in np.concatenate([base, source])} <= {tuple(row) for row in data.train}
    with pytest.raises(ValueError, match="add items"):
        pm.contrast_pairs(pm.make_compositional_dataset("two_hop", 8, 1), np.random.default_rng(0), 5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_patching_everything_that_differs_is_the_other_run(family: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family == "gpt2":
            model = small_decoder(9, 4, layers=2, width=8, heads=2).eval()
        else:  # an architecture that the notebook never saw
            sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
            model = LlamaForCausalLM(LlamaConfig(vocab_size=9, num_key_value_heads=1, **sizes)).eval()
    base, source = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1, 7, 3], [4, 8, 6]])
    with torch.no_grad():
        own, other = model(base).logits[:, -1], model(source).logits[:, -1]
    torch.testing.assert_close(pm.activation_patch(model, base, source, 0, 1), other)
    torch.testing.assert_close(pm.activation_patch(model, base, source, 2, 1), own)
    assert (pm.activation_patch(model, base, source, 1, 1) - own).abs().max() > 1e-6
    torch.testing.assert_close(pm.activation_patch(model, base, source, 2, 2), other)


# ---------------------------------------------------------------------------------------------------------------------
# training


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERS_THAT_RUN_CACHE", str(tmp_path))


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize(("arch", "supervision"), [("gpt2", "direct"), ("gpt2", "cot"), ("mamba", "direct")])
def test_a_tiny_decoder_learns_and_comes_back_from_the_cache(arch: str, supervision: str) -> None:
    data = pm.make_compositional_dataset("two_hop", 4, 20, supervision=supervision)
    plan = Plan(60, 1e-2, 20, 0.1, 5, 1.0)
    sizes = {"arch": arch, "layers": 1, "width": 16, "heads": 2, "checkpoints": 3}
    first = pm.train_decoder(data, data.train, plan, **sizes)
    assert isinstance(first.decoder, MambaForCausalLM if arch == "mamba" else GPT2LMHeadModel)
    assert first.course.shape == (3, 20)
    assert first.steps.tolist() == [20, 40, 60]
    again = pm.train_decoder(data, data.train, plan, **sizes)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    right = pm.final_answers(again.decoder, data.train[:, :3], data.train.shape[1] - 3) == data.train[:, -1]
    np.testing.assert_array_equal(right, again.course[-1].numpy())
    assert right.mean() > 0.5
    assert not right[:0].size


def test_bad_decoders_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'mamba'"):
        pm.build_decoder("mambo", 5, 4, 1, 8, 2)
    with pytest.raises(ValueError, match="multiple of the heads"):
        pm.build_decoder("gpt2", 5, 4, 1, 9, 2)
    data = pm.make_compositional_dataset("two_hop", 4, 10)
    with pytest.raises(ValueError, match="checkpoints"):
        pm.train_decoder(data, data.train, Plan(5, 1e-3), checkpoints=6)


def test_parameters_have_ranges() -> None:
    assert pm.Parameters().preset == "small"
    for bad in ({"p_seen": 0}, {"n_tokens": 1}, {"arch": "rnn"}, {"unknown": 1}, {"n_train": 0}):
        with pytest.raises(ValidationError):
            pm.Parameters(**bad)
