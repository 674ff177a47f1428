# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     notebook_metadata_filter: -jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What can pattern matching solve? Coverage, a law of data, and one variable too many
#
# **Paper.** Hoyeon Chang, Jinho Park, Hanseul Cho, Sohee Yang, Miyoung Ko, Hyeonbin Hwang, Seungpil Won, Dohaeng Lee, Youbin Ahn, Minjoon Seo, *Characterizing Pattern Matching and Its Limits on Compositional Task Structures*, ICLR 2026, arXiv 2505.20278. **Code.** `kaistAI/coverage-principle`, MIT.
#
# **Topics.** Compositional generalisation, data, mechanistic interpretability. **Cost.** About a minute on one processor core, 1 GiB, no download; seconds once the models are cached.

# %% [markdown]
# **Whose problem this is.** A language model fails on an easy two-step question, and somebody says: it only matches patterns.
# Which unseen questions *can* pattern matching answer?
# You would like to know before you train: from the data alone.
# This paper says how to count it, how much data two steps need, and which structure no amount will repair.
# You keep a list of hopeless test items, and know which data to add.

# %% [markdown]
# ## Claims
#
# *ID* items are unseen combinations of seen parts.
#
# - **C1** Coverage shrinks with the evidence asked for (C1a), equals a search on the explicit graph (C1b), and substitution by true equivalence never errs (C1c).
# - **C2** The data that two hops need grow like $n^{2.5-0.5/k}$: the exponent rises with $k$ (C2a) and is near the theory's (C2b).
# - **C3** Items with stronger evidence are answered better.
# - **C4** Where substitution cannot reach, a model guesses.
# - **C5** If one variable reaches the answer by two paths, less is covered (C5a), ID accuracy is lower (C5b), and the model forms no common state by bridge (C5c).
# - **C6** It forms one by bridge and variable instead.
# - **C7** Writing the bridge down saves data (C7a, C7b) but does not undo the ambiguity (C7c).
# - **C8** Other widths, and Mamba, order the training sizes alike.

# %% [markdown]
# ## Parameters
#
# Decoders of 100,000 parameters learn random look-up tables. `language_model` (preset `real`) reads the representation of a real two-hop fact in a pretrained model instead.

# %% tags=["parameters"]
preset: str = "small"  # named parameter set of presets/pattern_matching.toml
seed: int = 0  # seed of the tables, the training sets, the batches and the bootstraps
language_model: str = ""  # pretrained model to read a real fact in; empty: train decoders here
n_tokens: int = 16  # n, tokens of the vocabulary
p_seen: float = 0.7  # share of each table that training may call
n_train: int = 1400  # N, training items of the main comparison
n_few: int = 700  # N where cutoffs spread, and of the written bridges
n_sparse: int = 100  # N where many ID items are not covered
n_layer: int = 2  # blocks of a decoder
d_model: int = 64  # its width
n_head: int = 4  # its attention heads
lr: float = 0.003  # peak learning rate
weight_decay: float = 1.0  # of matrices only; twice as much for Mamba
batch_size: int = 256  # items of a training step; half with few items
max_steps: int = 1000  # training steps of the main comparison
few_steps: int = 300  # training steps with few items
run_mamba: bool = True  # train a Mamba beside the transformers
k_max: int = 12  # largest evidence strength looked for
coverage_ns: list[int] = [16, 24, 32, 48, 64]  # vocabularies of the law
coverage_ks: list[int] = [1, 2, 3]  # its evidence strengths, rising
coverage_seeds: int = 8  # its training sets
ambiguity_seeds: int = 8  # pairs of data sets in the comparison of coverage
pairs: int = 200  # pairs of inputs in the patching
countries: int = 24  # countries of the real fact
scaling_ns: list[int] = []  # training sizes at which other decoders are compared; none: left out
scaling_widths: list[int] = [32, 64]  # widths that are compared
scaling_steps: int = 150  # training steps of that comparison
device: str = "cpu"  # where decoders are trained: cpu, cuda or mps

# %% [markdown]
# ## Setup
#
# The method is `lib.methods.pattern_matching`, here `pm`. Training data, logit lens and patching come from `lib.substrates`; [cot_circuit](cot_circuit.ipynb) explains the last two.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import rankdata, spearmanr

from lib.bench import bootstrap_interval, show_source, start
from lib.methods import pattern_matching as pm

run = start("pattern_matching", globals())

# %% [markdown]
# ## Symbols and a first example
#
# | maths | code | meaning |
# |---|---|---|
# | $\mathbf x\in\mathcal X^\ell$, $\lvert\mathcal X\rvert=n$ | `inputs` | an input of $\ell$ tokens |
# | $f(\mathbf x)$ | `targets` | its answer |
# | $D$ | `data.observed` | training inputs with answers |
# | $I$, $\mathbf x_I$ | `subset`, `fragments` | some positions, the tokens there |
# | $\mathbf a\equiv_I^{D,k}\mathbf a'$ | `Evidence.classes(k)` | functional $k$-equivalence |
# | $G(D,k)$ | `SubstitutionGraph` | inputs, joined by safe substitutions |
# | $\mathrm{Cover}_k(D)$ | `covered(k)` | what paths join to $D$ |
# | $b=f_1(x_1,x_2)$ | `bridges` | the hidden intermediate result |
#
# Two-hop: $t=f_2(f_1(x_1,x_2),x_3)$. **Non-tree**: $t=f_2(f_1(x_1,x_2),x_2,x_3)$, where $x_2$ takes two paths. All tables are random: no algebra helps.

# %% [markdown]
# Six observations. The fragments 00 and 11 in front were both seen before context 0, and both gave 0; before context 1, and both gave 1. Then 00 before 2 gave 2. Nobody saw 11 before 2. Yet two shared contexts say that 11 acts like 00: substitute, and answer 2.
#
# The pair is evidence of strength 2, so the query's *cutoff* is 2. The fragment 22 shares one context with 00 and **disagrees**: no evidence at all. Look for a cutoff of 2, then 0.

# %%
x = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 2], [2, 2, 0]])
y = np.array([0, 0, 1, 1, 2, 2])
print("classes:", pm.functional_equivalence_classes(x, y, subset=(0, 1), k=2))
print("cutoffs of 112 and 222:", pm.k_cutoff(x, y, np.array([[1, 1, 2], [2, 2, 2]]), k_max=5, subsets=[(0, 1)]))

# %% [markdown]
# ## The core step
#
# **Equivalence.** $\mathbf a\equiv\mathbf a'$ if at least $k$ contexts were observed with both, and *all* shared ones give the same answer. Pairs by pairs that is slow. With $M$ the 0/1 matrix of fragments by contexts, $MM^\top$ counts shared contexts; with columns split by answer, it counts those that agree. A pair is contradicted where the two differ.
#
# Read the two products, and where contradicted pairs go.

# %%
show_source(pm.Evidence.of)

# %% [markdown]
# **Coverage.** Equivalent fragments may be exchanged in *any* context, seen or not. All inputs are nodes, so a class may hang on its first member, in every context: few edges, same components. An input is covered if its component holds an observation.
#
# The released code also demands equal answers along an edge and has fewer nodes; the definition does not.

# %%
show_source(pm.SubstitutionGraph._edges)
show_source(pm.SubstitutionGraph.covered)

# %% [markdown]
# ## Exact checks
#
# **The definition, word by word.** The next cell builds $G(D,k)$ with nested loops and searches it breadth first. It knows nothing of matrices.


# %%
def searched_cover(x, y, k, n):
    """Inputs (n^l,) that breadth-first search reaches from D on the explicit graph."""
    known, length = {tuple(row): int(t) for row, t in zip(x.tolist(), y, strict=True)}, x.shape[1]
    nodes = list(itertools.product(range(n), repeat=length))
    neighbours = {node: set() for node in nodes}
    for subset in pm.proper_subsets(length):
        by_fragment = {}
        for node in nodes:
            fragment, context = tuple(node[i] for i in subset), tuple(node[i] for i in range(length) if i not in subset)
            by_fragment.setdefault(fragment, {})[context] = node
        for one, other in itertools.combinations(by_fragment.values(), 2):
            shared = [(known[one[c]], known[other[c]]) for c in one if one[c] in known and other[c] in known]
            if len(shared) >= k and all(a == b for a, b in shared):
                for context in one:
                    neighbours[one[context]].add(other[context])
                    neighbours[other[context]].add(one[context])
    reached, queue = set(known), list(known)
    while queue:
        fresh = neighbours[queue.pop()] - reached
        reached |= fresh
        queue += fresh
    return np.array([node in reached for node in nodes])


# %% [markdown]
# Small tables of both structures, two seeds, three strengths. Look for two zeros: inputs on which search and matrices differ; inputs covered at $k+1$ but not at $k$, or observed but not covered.

# %% tags=["nbval-check-output"]
mismatches = violations = 0
for task, n, s in itertools.product(("two_hop", "non_tree"), (4, 6), run.seeds(2)):
    small_x, small_y = pm.make_compositional_dataset(task, n, n**3 // 3, seed=s).observed
    graph = pm.SubstitutionGraph(small_x, small_y, n_tokens=n)
    cover = np.stack([graph.covered(k) for k in (1, 2, 3)])
    mismatches += sum(int((cover[k - 1] != searched_cover(small_x, small_y, k, n)).sum()) for k in (1, 2, 3))
    violations += int((cover[1:] & ~cover[:-1]).sum() + (~cover[:, graph.observed]).sum())
print("mismatches with search:", mismatches)
print("not monotone:", violations)

# %% [markdown]
# **True equivalence.** If $D$ is the whole table, equivalent fragments agree everywhere, and a substitution cannot change an answer. From a part of the table it can: with $k=1$ two bridges agree by chance in one context with probability $1/n$. That is weak evidence, not a bug.
#
# A component that holds two answers is a wrong substitution.


# %%
def mixed(inputs, targets, answers):
    """Components of G(D, 1) that hold different answers; `answers` of all inputs over six tokens."""
    component = pm.SubstitutionGraph(inputs, targets, n_tokens=6).components(1)
    distinct = np.unique(np.stack([component, answers]), axis=1)[0]
    return int((np.bincount(distinct) > 1).sum())


# %% [markdown]
# Look for 0 by true equivalence, then for some by weak evidence.

# %% tags=["nbval-check-output"]
wrong_substitutions, mixing, every = 0, 0, pm.all_inputs(6, 3)
for task, s in itertools.product(("two_hop", "non_tree"), run.seeds(2)):
    tables, drawn = pm.draw_candidates(task, 6, 0.7, np.random.default_rng(s))
    answers = pm.compute(task, tables, every)[0][:, -1]
    wrong_substitutions += mixed(every, answers, answers)
    mixing += mixed(drawn[:60], pm.compute(task, tables, drawn[:60])[0][:, -1], answers)
print("wrong by true equivalence:", wrong_substitutions)
print("wrong by weak evidence:", mixing > 0)

# %% [markdown]
# ## Experiment
#
# **A law, without a model.** Fragments $(x_1,x_2)$: about $n^2$, some $n$ for each bridge. From $N$ items each was seen in $N/n^2$ of $n$ contexts, so two share $\mu\approx(N/n^2)^2/n=N^2/n^5$. They share $k$ with probability about $\mu^k$. The fragments of one bridge hang together once $\mu^k\gtrsim\log n/n$:
#
# $$N\gtrsim n^{5/2-1/(2k)}\quad\text{up to logarithms.}$$
#
# (Our derivation; the paper's proof was not at hand.) We measure the $N$ at which 99 % of ID items are covered, counting evidence between fragments of one bridge only. Rival: the fragment was merely *seen* more than $k$ times. Theory for that: $n^2$.

# %%
law_seeds = run.seeds(coverage_seeds)


def needed(rule, seeds, threshold=0.99):
    """N (strengths, seeds, sizes)."""
    grid = itertools.product(coverage_ks, seeds, coverage_ns)
    found = [pm.coverage_sample_complexity(n, k, threshold, s, p_seen, rule) for k, s, n in grid]
    return np.reshape(found, (len(coverage_ks), len(seeds), len(coverage_ns)))


def exponents(values):
    """Exponent of the geometric mean over seeds, (strengths,)."""
    return np.array([pm.fit_power_law(coverage_ns, np.exp(np.log(v).mean(0)))[0] for v in values])


theory = 2.5 - 0.5 / np.array(coverage_ks)
required = needed("substitution", law_seeds)
counted = needed("count", law_seeds[: coverage_seeds // 2])
to_the_last = needed("substitution", law_seeds[:2], threshold=1.0)

# %% [markdown]
# Look for exponents that rise with $k$, a little below theory at $k=2,3$. The count's creep up too: at these sizes a law of $n^2$ and one of $n^{2.25}$ are not far apart, and only $k=3$ tells them from each other. To cover the *last* item, 100 %, is another question: finite size lifts all slopes.

# %%
rows = {"theory": theory, "substitution": exponents(required), "count": exponents(counted)}
for name, values in (rows | {"to 100 %": exponents(to_the_last)}).items():
    print(f"{name:>12}: " + "  ".join(f"k = {k}: {c:.2f}" for k, c in zip(coverage_ks, values, strict=True)))

# %% [markdown]
# **Decoders.** GPT-2 layout, two blocks, trained on answer tokens only. `direct` writes $t$; `cot` writes $b$, then $t$; `fake_bridge` writes a dummy, then $t$: the length of a chain of thought without its content. Steps are fixed: stopping at perfect *training* accuracy would come before generalisation.


# %%
from lib.substrates.training import Plan


class Condition:
    """Data, decoder, and its answers to the test items."""

    def __init__(self, task, size, plan, supervision="direct", width=d_model, arch="gpt2", draw=0):
        source = (task, n_tokens, size, p_seen, supervision, run.seeds(draw + 1)[draw])
        self.data = data = pm.make_compositional_dataset(*source)
        self.ids = data.test_type == 0
        shape = {"arch": arch, "layers": n_layer, "width": width, "heads": n_head, "seed": seed, "device": device}
        trained = pm.train_decoder(data, data.test[self.ids], plan, **shape)
        self.decoder, self.course, self.steps = trained.decoder, trained.course.numpy(), trained.steps.numpy()
        self.right, self.train_right = (self.correct(items) for items in (data.test, data.train))
        self.id_right = self.right[self.ids]

    def correct(self, items):
        length = self.data.length
        return pm.final_answers(self.decoder, items[:, :length], items.shape[1] - length) == items[:, -1]


# %% [markdown]
# **Three training sizes.** With many items both structures are fully covered; with few, cutoffs spread; with very few, many ID items are not covered at all (three draws). In the main comparison the rate stays high, as in the paper: the tree generalises late, and weight decay drives it. Elsewhere it falls to a tenth, so that the last step is not noise.


# %%
def schedule(steps, batch, decay=weight_decay, final=0.1):
    return Plan(steps, lr, batch, decay, min(50, steps // 4), final)


many, few = schedule(max_steps, batch_size, final=1.0), schedule(few_steps, batch_size // 2)
brief, for_mamba = schedule(few_steps // 2, batch_size // 2), schedule(few_steps, batch_size // 2, 2 * weight_decay)
plans = {f"2-HOP, very few, {d}": ("two_hop", n_sparse, brief, "direct", d_model, "gpt2", d) for d in range(3)}
plans |= {
    "2-HOP": ("two_hop", n_train, many),
    "NON-TREE": ("non_tree", n_train, many),
    "2-HOP, few": ("two_hop", n_few, few),
    "2-HOP-CoT, few": ("two_hop", n_few, few, "cot"),
    "2-HOP-fake, few": ("two_hop", n_few, few, "fake_bridge"),
    "NON-TREE-CoT, few": ("non_tree", n_few, few, "cot"),
}
if run_mamba:
    plans["2-HOP, Mamba"] = ("two_hop", n_train, for_mamba, "direct", d_model, "mamba")

# %% [markdown]
# Look at the two rows with most steps, and at the four with few items. Mamba is smaller, and sees fewer and smaller batches.

# %%
runs = {} if language_model else {name: Condition(*how) for name, how in run.progress(plans.items(), "training")}
for name, r in runs.items():
    print(f"{name:>18}: {r.steps[-1]:5} steps, training {r.train_right.mean():.2f}, ID {r.id_right.mean():.2f}")

# %% [markdown]
# **Which items?** The cutoff of every test item, from the data alone. A test item whose call was never seen is *out of distribution*: types 1, 2 and 3 lack the first call, the second, both. See what weak evidence does at $n=16$: at $k=1$, chance agreements cover everything, the hopeless types too. Only $k\ge2$ separates.

# %%
cutoffs = {name: pm.k_cutoff(*r.data.observed, r.data.test[:, :3], k_max) for name, r in runs.items()}
for name in [name for name in ("2-HOP", "NON-TREE", "2-HOP, few", "2-HOP, very few, 0") if name in runs]:
    kinds = runs[name].data.test_type
    for k in (1, 2):
        shares = [f"{np.mean(cutoffs[name][kinds == kind] >= k):.2f}" for kind in range(4)]
        print(f"{name:>15}: covered at k = {k}, types 0 to 3:", *shares)

# %% [markdown]
# **Cutoff against correctness** (C3), with few items and a written bridge. Two rivals: *every ID item alike* ranks nothing; the plain *count*, how often the item's $(x_1,x_2)$ was seen, ranks too. Spearman's correlation, written so that items can be resampled:


# %%
def rank_correlation(a, b):
    """Spearman correlation of resampled items, as a statistic of their indices (..., n)."""
    ranks = [rankdata(values) for values in (a, b)]

    def statistic(items, axis=-1):
        u, v = (rank[items.astype(int)] for rank in ranks)
        u, v = u - u.mean(axis, keepdims=True), v - v.mean(axis, keepdims=True)
        return (u * v).mean(axis) / np.maximum(np.sqrt((u * u).mean(axis) * (v * v).mean(axis)), 1e-12)

    return statistic


# %% [markdown]
# Look for cutoff and count side by side, and for about 0 where cutoffs are shuffled. At this size the two are nearly one variable: a fragment seen often shares many contexts. Which ranks better changes with the length of training; the cutoff's advantage is that it also says *never*.

# %%
if runs:
    chained = runs["2-HOP-CoT, few"]
    cutoff, solved = cutoffs["2-HOP-CoT, few"][chained.ids], chained.id_right
    fragments = [items[:, 0] * n_tokens + items[:, 1] for items in (chained.data.train, chained.data.test[chained.ids])]
    count, everyone = np.bincount(fragments[0], minlength=n_tokens**2)[fragments[1]], np.arange(len(solved))
    for what, values in {"cutoff": cutoff, "count": count, "shuffled": run.rng.permutation(cutoff)}.items():
        print(f"{what:>8}: {rank_correlation(values, solved)(everyone):+.2f}")

# %% [markdown]
# **Outside** (C4). What is the best that needs no understanding? The most frequent answer after this $x_3$, or one guess in $n$. We take the better of the two per type, and count as independent only what is: all items that lack one table entry share its fate, so we resample entries, not items.


# %%
def excess_over_guess(r, chosen, call):
    """Right answers above the best guess, and items, (2, entries): summed for each entry of the table `call`."""
    train, test = r.data.train, r.data.test[chosen]
    guess = pm.modal_guess(train[:, [2]], train[:, -1], test[:, [2]]) == test[:, -1]
    above = r.right[chosen] - max(guess.mean(), 1 / n_tokens)
    entries = pm.compute("two_hop", r.data.tables, test[:, :3])[1][:, call]
    _, entry = np.unique(entries, return_inverse=True)
    return np.stack([np.bincount(entry, above), np.bincount(entry)])


def pooled(sums):
    """Mean over items of resampled entries (..., E), as a statistic."""
    return lambda entries, axis=-1: np.divide(*sums[:, entries.astype(int)].sum(-1))


# %% [markdown]
# Look for numbers near zero or below, and for a large one inside.

# %%
outside = {}
if runs:
    tree, sparse = runs["2-HOP"], {name: r for name, r in runs.items() if "very few" in name}
    outside = {
        f"type {kind}": excess_over_guess(tree, tree.data.test_type == kind, int(kind == 2)) for kind in (1, 2, 3)
    }
    parts = [excess_over_guess(r, r.ids & (cutoffs[name] == 0), 0) for name, r in sparse.items()]
    outside["uncovered ID"] = np.concatenate(parts, axis=1)
    inside = np.divide(*excess_over_guess(tree, tree.ids, 0).sum(1))
    for label, (above, items) in outside.items():
        print(
            f"{label:>13}: {above.sum() / items.sum():+.3f} over the best guess, {len(items)} entries, {items.sum():.0f} items"
        )
    print(f"   covered ID: {inside:+.3f}")

# %% [markdown]
# **Path ambiguity.** First the data alone: the share of ID items that are covered, in eight pairs of data sets. In a tree, $x_1x_2$ and $x_1'x_2'$ with the same bridge are the same to the rest of the computation. In the non-tree task they are so only if $x_2=x_2'$ too: classes are smaller by a factor $n$. Look for the drop from $k=2$ on.


# %%
def covered_shares(task):
    """Share of ID items covered at k = 1..4, (seeds, 4)."""
    shares = []
    for s in run.seeds(ambiguity_seeds):
        data = pm.make_compositional_dataset(task, n_tokens, n_few, p_seen, seed=s)
        found = pm.k_cutoff(*data.observed, data.test[data.test_type == 0, :3], 4)
        shares.append([(found >= k).mean() for k in (1, 2, 3, 4)])
    return np.array(shares)


tree_shares, loop_shares = covered_shares("two_hop"), covered_shares("non_tree")
print("2-HOP   ", tree_shares.mean(0).round(2))
print("NON-TREE", loop_shares.mean(0).round(2))

# %% [markdown]
# **A trivial rival.** A non-tree item is ID only if its $(b,x_2,x_3)$ was seen, so the most frequent answer after $(x_2,x_3)$ is right surprisingly often. Compare it with what the model gets.

# %%
for name in [name for name in ("2-HOP", "NON-TREE") if name in runs]:
    train, test = runs[name].data.train, runs[name].data.test[runs[name].ids]
    guess = pm.modal_guess(train[:, 1:3], train[:, -1], test[:, 1:3]) == test[:, -1]
    print(f"{name:>9}: guess from (x2, x3) {guess.mean():.2f}, model {runs[name].id_right.mean():.2f}")

# %% [markdown]
# **Inside.** If a model merges equivalent fragments, their residual streams at $x_2$ should agree. IICG is the mean cosine within a group minus that between groups, of centred vectors, one a fragment (equal prefixes have cosine 1 by causality). Groups: by $b$, or by $(b,x_2)$.
#
# **A trap.** The stream at $x_2$ still carries the embedding of $x_2$, so groups by $(b,x_2)$ look alike *before the first block*. We take the mean of each $x_2$ off first; then depth 0 scores exactly 0.

# %%
import torch

from lib.substrates.lens import residual_streams


def streams_and_labels(name):
    """Streams (depth, fragments, positions, width) of one training item for each (x1, x2), and its labels."""
    data = runs[name].data
    inputs = data.train[np.unique(data.train[:, :2], axis=0, return_index=True)[1], :3]
    bridge, second = data.bridges(inputs)[:, 0], inputs[:, 1]
    labels = {"b": bridge, "x2": second, "(b, x2)": bridge * n_tokens + second}
    return residual_streams(runs[name].decoder, {"input_ids": torch.tensor(inputs)}, None), labels


# %% [markdown]
# One gap for each depth and position. Look at $x_2$, and at the last line: the uncorrected gap by $(b,x_2)$ is large, but largest *before* the first block.


# %%
def gap(vectors, labels, by):
    """IICG by `by`; where x2 is part of the label, the mean of each x2 is taken off."""
    if "x2" in by:  # in double precision, so that what is left of equal vectors is 0
        one_hot = torch.nn.functional.one_hot(torch.tensor(labels["x2"])).double()
        vectors = vectors.double() - one_hot @ (one_hot.T @ vectors.double() / one_hot.sum(0).clamp(min=1)[:, None])
    return pm.intra_inter_cosine_gap(vectors, labels[by])


maps = {}
for name, by in [("2-HOP", "b"), ("NON-TREE", "b"), ("NON-TREE", "(b, x2)"), ("2-HOP-CoT, few", "b")] if runs else []:
    streams, labels = streams_and_labels(name)
    maps[name, by] = np.array([[gap(layer[:, p], labels, by) for p in range(3)] for layer in streams])
    print(f"{name:>15} by {by:8} after block 1: at x2 {maps[name, by][1, 1]:+.2f}, at x3 {maps[name, by][1, 2]:+.2f}")

for name in ["NON-TREE"] if runs else []:
    streams, labels = streams_and_labels(name)
    raw = [pm.intra_inter_cosine_gap(layer[:, 1], labels["(b, x2)"]) for layer in streams]
    print(f"{name:>15} by (b, x2), uncorrected, depth 0 to {n_layer}:", *np.round(raw, 2))

# %% [markdown]
# **Causal.** Take two training inputs that differ in $x_2$ alone, with other bridge and answer. Carry the stream at $x_2$ from one run to the other: is the answer now that of the source? (How such patching works is told in [cot_circuit](cot_circuit.ipynb).) At depth 0 the whole difference is carried, at the last depth nothing reads it any more. Depth 1 is the question: in a tree the state at $x_2$ should be all that matters.

# %%
for name in [name for name in ("2-HOP", "NON-TREE") if name in runs]:
    base, source = (torch.tensor(items) for items in pm.contrast_pairs(runs[name].data, run.rng, pairs))
    shares = []
    for depth in range(n_layer + 1):
        logits = pm.activation_patch(runs[name].decoder, base[:, :3], source[:, :3], depth, position=1)
        shares.append((logits.argmax(-1) == source[:, -1]).float().mean().item())
    print(f"{name:>9}: answer of the source, depth 0 to {n_layer}:", *np.round(shares, 2))

# %% [markdown]
# **A real two-hop fact** (preset `real` only). *The city of Kraków is in the country of ...*: the fragment is the city, the bridge its country, the contexts are questions. Nobody knows what the model saw in training, so coverage predicts nothing here; but the representation can be read. First the questions.

# %%
QUESTIONS = {
    "country": ("The city of {} is in the country of", lambda nation: nation.name),
    "continent": ("The city of {} is on the continent of", lambda nation: nation.continent.rstrip("s")),
    "demonym": ("In the city of {}, most people are", lambda nation: nation.demonym),
}


def city_rows(tokenizer):
    """Five cities each of the largest countries whose name is one token, as (city, country)."""
    from lib.substrates.facts import load_cities, load_countries

    known, cities = [nation for nation in load_countries() if nation.demonym and nation.continent], load_cities()
    nations = [nation for nation in known if len(tokenizer.encode(" " + nation.name)) == 1][:countries]
    return [(city, n) for n in nations for city in [c for c in cities if c.country_code == n.code][:5]]


# %% [markdown]
# An answer is the best of all candidates' first tokens (*America* for the Americas). Prompts are padded on the left, so that what follows the city stands at the same places.


# %%
def ask(network, tokenizer, rows):
    """Per question: the prompts as tokens, the true token (Q,) and the answered one."""
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    for question, (text, answer) in QUESTIONS.items():
        truth = np.array([tokenizer.encode(" " + answer(nation))[0] for _, nation in rows])
        prompts = dict(tokenizer([text.format(city.name) for city, _ in rows], return_tensors="pt", padding=True))
        with torch.no_grad():
            logits = network(**prompts, use_cache=False).logits[:, -1].numpy()
        candidates = np.unique(truth)
        yield question, prompts, truth, candidates[logits[:, candidates].argmax(1)]


# %% [markdown]
# Look for accuracies above chance, and for a gap by country that grows with depth.

# %%
if language_model:
    from lib.substrates.models import load_language_model

    network, tokenizer = load_language_model(language_model)
    rows = city_rows(tokenizer)
    asked, truth, answered = {}, {}, {}
    for question, *found in ask(network, tokenizer, rows):
        asked[question], truth[question], answered[question] = found
        right = np.mean(answered[question] == truth[question])
        print(f"{question:>9}: {right:.2f} right, {len(np.unique(truth[question]))} candidates")
    at_city = -1 - len(tokenizer.encode(" is in the country of"))
    city_streams = residual_streams(network, asked["country"], at_city)
    nation, continent = (np.array([getattr(n, what) for _, n in rows]) for what in ("name", "continent"))
    groups = {"country": nation, "continent": continent, "shuffled": run.rng.permutation(nation)}
    fact_gaps = {by: [pm.intra_inter_cosine_gap(s, names) for s in city_streams] for by, names in groups.items()}
    print("gap by country, every fifth depth:", *np.round(fact_gaps["country"][::5], 2))

# %% [markdown]
# Now carry the stream of another country's city, where both countries are known. Whose country is named?

# %%
shares, depths = [], []
if language_model:
    from lib.substrates.lens import transplanted_logits

    source, known = run.rng.permutation(len(rows)), answered["country"] == truth["country"]
    chosen = np.flatnonzero(known & known[source] & (nation != nation[source]))[:pairs]
    prompts, candidates = {k: v[chosen] for k, v in asked["country"].items()}, np.unique(truth["country"])
    depths = list(range(0, len(city_streams), max(1, len(city_streams) // 10)))
    for depth in run.progress(depths, "patching"):
        giver = city_streams[depth][torch.tensor(source[chosen])]
        logits = transplanted_logits(network, prompts, giver, depth, at_city).numpy()
        named = candidates[logits[:, candidates].argmax(1)]
        shares.append([np.mean(named == truth["country"][row]) for row in (source[chosen], chosen)])
    print("the source's:", *(f"{depth}: {share:.2f}" for depth, (share, _) in zip(depths, shares, strict=True)))

# %% [markdown]
# The observed table: what the model answers right. Two cities have as much evidence as they share right answers. For every second city each question in turn is hidden, and its cutoff counted. Fame may explain both evidence and correctness, so population stands beside; there is no verdict. The table also serves C1b.

# %%
fact_mismatches = 0
if language_model:
    right = np.stack([answered[question] == truth[question] for question in QUESTIONS], 1)
    tokens, hidden = np.stack(list(truth.values()), 1), np.flatnonzero(np.arange(len(rows)) % 2)
    strength = np.zeros((len(hidden), 3), dtype=int)
    for q in range(3):
        shown = right.copy()
        shown[hidden, q] = False
        queries = np.stack([hidden, np.full(len(hidden), q)], 1)
        strength[:, q] = pm.k_cutoff(np.argwhere(shown), tokens[shown], queries, 2, [(0,)])
    size = np.repeat([[city.population] for city, _ in rows], 3, 1)[hidden]
    for what, values in {"cutoff": strength, "population": size}.items():
        print(f"correctness against {what}: {spearmanr(values.ravel(), right[hidden].ravel()).statistic:+.2f}")
    graph = pm.SubstitutionGraph(np.argwhere(right), tokens[right], n_tokens=len(rows))
    searched = searched_cover(np.argwhere(right), tokens[right], 2, len(rows))
    fact_mismatches = int((graph.covered(2) != searched).sum())

# %% [markdown]
# ## Figures
#
# **Fig. 1.** The law of C2. Look for straight lines whose steepness grows with $k$; dashes have the theory's slope.

# %%
fig, ax = plt.subplots()
for k, c, values in zip(coverage_ks, theory, required, strict=True):
    mean = np.exp(np.log(values).mean(0))
    (line,) = ax.loglog(coverage_ns, mean, "o", label=f"k = {k}: slope {exponents([values])[0]:.2f}, theory {c:.2f}")
    _ = ax.loglog(coverage_ns, mean[-1] * (np.array(coverage_ns) / coverage_ns[-1]) ** c, "--", color=line.get_color())
_ = ax.set_xticks(coverage_ns, [str(n) for n in coverage_ns])
_ = ax.set_xlabel("tokens n")
_ = ax.set_ylabel("training items N to cover 99 % of ID items")
_ = ax.set_title("More evidence asks for more data, and for faster growth")
ax.minorticks_off()
_ = ax.legend()
run.figure("law", fig)

# %% [markdown]
# The points lie on lines over a factor of four in $n$. Slopes depend on the threshold: at 100 % one last item decides, and finite size lifts them.
#
# **Fig. 2.** The course of training with few items and written bridges, by cutoff. Look for the order of the lines, which the data alone foretold; in the preset `real`, for the depth at which a city's stream stops deciding.

# %%
fig, ax = plt.subplots()
for k in range(1, 6) if runs else []:
    members = cutoff == k if k < 5 else cutoff >= k
    if members.any():
        label = f"cutoff {k}{' or more' if k == 5 else ''} ({members.sum()} items)"
        _ = ax.plot(chained.steps, chained.course[:, members].mean(1), "o-", label=label)
for what, share in zip(("source's country", "own country"), np.transpose(shares), strict=False):
    _ = ax.plot(depths, share, "o-", label=what)
_ = ax.axhline(1 / (n_tokens if runs else countries), color="grey", ls=":", label="chance")
_ = ax.set(xlabel="training step" if runs else "depth of the carried stream (blocks)")
_ = ax.set(ylabel="accuracy on unseen ID items" if runs else "share of pairs")
_ = ax.set_title("Weak evidence is learned last" if runs else "The city's stream decides, until it has been read")
_ = ax.legend()
run.figure("course", fig)

# %% [markdown]
# The lines keep the order of the evidence. Cutoff 1, where a chance agreement may be all there is, lags behind and stays lowest.
#
# **Fig. 3.** The gap at every depth and position. Look at $x_2$ after block 1: bright in the tree by $b$, dark in the non-tree by $b$, a little brighter there by $(b,x_2)$. With a written bridge the place is $x_3$, where it is emitted.


# %%
def draw_map(ax, values, title):
    """Gaps (depth, position) as a picture with numbers."""
    image = ax.imshow(values, vmin=0, vmax=1, origin="lower", aspect="auto")
    for (depth, position), value in np.ndenumerate(values):
        _ = ax.text(position, depth, f"{value:.2f}", ha="center", va="center", color="w" if value < 0.6 else "k")
    ax.set_xticks(range(3), ["x1", "x2", "x3"])
    _ = ax.set(title=title, xlabel="position", yticks=range(len(values)))
    return image


# %% [markdown]
# In the preset `real`, look for lines by depth instead.

# %%
fig, axes = plt.subplots(1, len(maps) or 1, figsize=(10, 3.2), sharey=True, layout="constrained", squeeze=False)
for ax, ((name, by), values) in zip(axes[0], maps.items(), strict=False):
    image = draw_map(ax, values, f"{name}\nby {by}")
if maps:
    _ = fig.colorbar(image, ax=axes, label="cosine gap")
    _ = axes[0, 0].set_ylabel("depth (blocks passed)")
else:
    for by, values in fact_gaps.items():
        _ = axes[0, 0].plot(values, label=f"by {by}")
    _ = axes[0, 0].set(xlabel="depth (blocks passed)", ylabel="cosine gap at the city")
    _ = axes[0, 0].legend()
_ = fig.suptitle("Only the tree's bridge becomes a state of its own" if maps else "Cities of one country grow alike")
run.figure("gaps", fig)

# %% [markdown]
# The tree's stream at $x_2$ sorts itself by bridge; the non-tree's does not.
#
# **Fig. 4.** The substitution graph of the smallest case, $n=3$, $k=2$, from 13 observations.

# %%
import networkx as nx

tiny_x, tiny_y = pm.make_compositional_dataset("two_hop", 3, 13, 0.9, seed=1).observed
tiny = pm.SubstitutionGraph(tiny_x, tiny_y, n_tokens=3)
links = np.concatenate([tiny._edges(subset, evidence, 2) for subset, evidence in tiny.evidence.items()], axis=1)
picture = nx.empty_graph(27)
picture.add_edges_from(links.T.tolist())
kind = tiny.covered(2).astype(int)
kind[tiny.observed] = 2

# %% [markdown]
# Look for observed nodes, covered ones that hang on them, and hopeless ones apart. A number spells $x_1x_2x_3$.

# %%
fig, ax = plt.subplots()
places = {}
for cell, members in enumerate(sorted(nx.connected_components(picture), key=lambda some: (-len(some), min(some)))):
    centre = (cell % 5, -(cell // 5))
    places |= nx.circular_layout(picture.subgraph(sorted(members)), scale=0.33 * (len(members) > 1), center=centre)
_ = nx.draw_networkx_edges(picture, places, ax=ax, alpha=0.5)
for value, (colour, name) in enumerate({"salmon": "not covered", "gold": "covered", "skyblue": "observed"}.items()):
    nodes = np.flatnonzero(kind == value).tolist()
    style = {"node_color": colour, "node_size": 300, "label": f"{name}: {len(nodes)}"}
    _ = nx.draw_networkx_nodes(picture, places, nodes, ax=ax, **style)
names = {i: "".join(map(str, row)) for i, row in enumerate(tiny.nodes)}
_ = nx.draw_networkx_labels(picture, places, names, font_size=7, ax=ax)
_ = ax.set(xlabel="one place a component", ylabel="the largest first", xticks=[], yticks=[])
_ = ax.set_title("Substitution reaches some unseen inputs and not others")
_ = ax.legend(markerscale=0.5, loc="upper left", bbox_to_anchor=(1, 1))
ax.grid(visible=False)
run.figure("graph", fig)

# %% [markdown]
# ## Verdicts
#
# Rules were fixed before the numbers. C1 counts violations.

# %%
exact = {
    "C1a": (
        "inputs covered at k + 1 but not at k, or observed but not covered",
        violations,
        "ask for exactly k contexts",
    ),
    "C1b": ("inputs on which matrices and search differ", mismatches + fact_mismatches, "ignore contradictions"),
    "C1c": ("components of true equivalence that mix answers", wrong_substitutions, "ignore contradictions"),
}
for id, (statement, measured, mutation) in exact.items():
    _ = run.claim(id, statement, measured=measured, rule="== 0", kind="exact", mutation=mutation)

# %% [markdown]
# C2 resamples seeds. Control: the strength asked for makes no difference, that is, the exponent of $k=1$ throughout.


# %%
def exponents_of(seeds_drawn):
    """Exponents (strengths, ...) of resampled seeds (..., S)."""
    logs, x = np.log(required)[:, seeds_drawn.astype(int)].mean(-2), np.log(coverage_ns)
    return logs @ (x - x.mean()) / ((x - x.mean()) ** 2).sum()


def smallest_step(seeds_drawn, axis=-1):
    return np.diff(exponents_of(seeds_drawn), axis=0).min(0)


def worst_deviation(seeds_drawn, axis=-1):
    return np.abs(np.moveaxis(exponents_of(seeds_drawn), 0, -1) - theory).max(-1)


# %% [markdown]
# A statistical claim is what was found, and why it might fail. In the preset `real` those about training are not evaluated.


# %%
UNKNOWN = {"measured": None, "reason": "what a pretrained model was trained on is unknown"}


def judge(id, statement, rule, found, why, paper=None):
    facts = found | {"reason": why} if found else UNKNOWN
    _ = run.claim(id, statement, rule=rule, kind="statistical", paper=paper, **facts)


def over_seeds(statistic, count, control):
    interval = bootstrap_interval(np.arange(count), statistic, rng=run.rng)
    return {"measured": float(statistic(np.arange(count))), "interval": interval, "control": control}


# %% [markdown]
# First C2a, the smallest step from one $k$ to the next; then C2b, the largest distance from theory.

# %%
alike, off = ("k = 1 for every k", 0.0), ("k = 1 for every k", np.abs(exponents(required)[0] - theory).max())
steps_found = over_seeds(smallest_step, coverage_seeds, alike)
judge("C2a", "the exponent rises with k: smallest step", "> 0", steps_found, "seeds vary", "theory 0.25, 0.083")
deviation = over_seeds(worst_deviation, coverage_seeds, off)
judge("C2b", "exponents near 2.5 - 0.5/k: worst", "<= 0.2", deviation, "slopes are not yet asymptotic", "GPT-2: 2.26")

# %% [markdown]
# C3. Control: a prediction that treats all ID items alike ranks nothing.

# %%
ranking = None
if runs:
    nothing = rank_correlation(np.ones(len(solved)), solved)(everyone)
    ranking = over_seeds(rank_correlation(cutoff, solved), len(solved), ("all ID items alike", float(nothing)))
judge(
    "C3", "rank correlation of cutoff and correctness, ID items", "> 0", ranking, "too few steps", "grows with cutoff"
)

# %% [markdown]
# C4: the type with the highest upper end. Control: items *inside* coverage.

# %%
edge = None
if runs:
    control = ("covered ID items", inside)
    found = [over_seeds(pooled(sums), sums.shape[1], control) for sums in outside.values() if sums.shape[1] > 1]
    edge = max(found, key=lambda f: f["interval"][1])
judge("C4", "accuracy outside, over the best guess", "<= 0.1", edge, "few independent entries", "near chance, 1/50")

# %% [markdown]
# C5a, in the data. Control: $k=1$, where chance covers both structures.


# %%
def smallest_drop(seeds_drawn, axis=-1):
    """Least difference over k = 2 to 4 of covered shares, averaged over seeds."""
    return (tree_shares - loop_shares)[seeds_drawn.astype(int)].mean(-2)[..., 1:].min(-1)


drop = over_seeds(smallest_drop, ambiguity_seeds, ("k = 1", (tree_shares - loop_shares)[:, 0].mean()))
judge("C5a", "ID items covered, 2-HOP minus NON-TREE, least of k = 2 to 4", ">= 0.05", drop, "seeds differ")

# %% [markdown]
# C5b, in what the models answer. Control: the same difference on *training* items.


# %%
def difference(a, b, control):
    """Difference of two accuracies, items resampled."""
    draws = [v[run.rng.integers(len(v), size=(2000, len(v)))].mean(1) for v in (a, b)]
    interval = tuple(np.quantile(draws[0] - draws[1], [0.025, 0.975]))
    return {"measured": a.mean() - b.mean(), "interval": interval, "control": control}


lost = None
if runs:
    loop = runs["NON-TREE"]
    memory = ("training items", tree.train_right.mean() - loop.train_right.mean())
    lost = difference(tree.id_right, loop.id_right, memory)
judge("C5b", "ID accuracy, 2-HOP minus NON-TREE", ">= 0.2", lost, "2-HOP has not generalised", "fails at 1.5B too")

# %% [markdown]
# C5c and C6, inside. Their error comes from a jackknife that leaves out one bridge at a time.


# %%
def jackknife(vectors, labels, statistic):
    """A statistic of all fragments, and its standard error from leaving out one bridge at a time."""
    kept = [labels["b"] != b for b in np.unique(labels["b"])]
    left = np.array([statistic(vectors[k], {name: label[k] for name, label in labels.items()}) for k in kept])
    return statistic(vectors, labels), np.sqrt((len(left) - 1) * left.var())


def with_error(value, error, control):
    return {"measured": value, "interval": (value - 1.96 * error, value + 1.96 * error), "control": control}


def by_bridge(vectors, labels):
    return gap(vectors, labels, "b")


def by_pair_beyond_bridge(vectors, labels):
    return gap(vectors, labels, "(b, x2)") - gap(vectors, labels, "b")


# %% [markdown]
# C5c: at $x_2$ after block 1. Control: shuffled bridges. In the preset `real`: the gap by country at two thirds of the depth.

# %%
unified = None
if runs:
    (one, its), (two, others) = (streams_and_labels(name) for name in ("2-HOP", "NON-TREE"))
    (high, error), (low, other_error) = (
        jackknife(one[1, :, 1], its, by_bridge),
        jackknife(two[1, :, 1], others, by_bridge),
    )
    shuffled = by_bridge(one[1, :, 1], {"b": run.rng.permutation(its["b"])})
    unified = with_error(high - low, np.hypot(error, other_error), ("shuffled bridges", shuffled))
if language_model:
    deep = 2 * (len(city_streams) - 1) // 3
    found = jackknife(city_streams[deep], {"b": nation}, by_bridge)
    unified = with_error(*found, ("shuffled countries", fact_gaps["shuffled"][deep]))
judge("C5c", "gap by bridge, 2-HOP over NON-TREE (real: itself)", ">= 0.05", unified, "no such state", "high, near 0")

# %% [markdown]
# C6. Control: the same before the first block, where no bridge can be known.

# %%
pair = None
if runs:
    before = jackknife(two[0, :, 1], others, by_pair_beyond_bridge)[0]
    pair = with_error(*jackknife(two[1, :, 1], others, by_pair_beyond_bridge), ("before block 1", before))
judge(
    "C6",
    "gap in NON-TREE, by (b, x2) over by b",
    ">= 0.1",
    pair,
    "the gap by (b, x2) is mostly x2's own embedding",
    "high against near 0",
)

# %% [markdown]
# C7. Control: the dummy in place of the bridge. For C7c, the difference on training items.

# %%
level = gain = lasting = None
if runs:
    cot, direct, fake, loop_cot = (runs[f"{n}, few"] for n in ("2-HOP-CoT", "2-HOP", "2-HOP-fake", "NON-TREE-CoT"))
    level = difference(cot.id_right, np.zeros(1), ("dummy bridge", fake.id_right.mean()))
    gain = difference(cot.id_right, direct.id_right, ("dummy bridge", fake.id_right.mean() - direct.id_right.mean()))
    memory = ("training items", cot.train_right.mean() - loop_cot.train_right.mean())
    lasting = difference(cot.id_right, loop_cot.id_right, memory)
judge("C7a", "ID accuracy of 2-HOP-CoT, few items", ">= 0.8", level, "too few steps", "exponent 2.09, direct 2.26")
judge("C7b", "its gain over direct answers at equal steps", ">= 0.1", gain, "no gain", "less data")
judge("C7c", "2-HOP-CoT minus NON-TREE-CoT", ">= 0.3", lasting, "the gap is smaller", "ambiguity remains")

# %% [markdown]
# C8 trains two widths and a Mamba, with written bridges, on every size in `scaling_ns`; none by default. The smallest rise from one size to the next counts. Control: the same on training items.

# %%
ladder = {}
if scaling_ns and not language_model:
    makes = {f"width {w}": (schedule(scaling_steps, batch_size // 2), "cot", w) for w in scaling_widths}
    makes["Mamba"] = (schedule(scaling_steps, batch_size // 2, 2 * weight_decay), "cot", d_model, "mamba")
    ladder = {name: [Condition("two_hop", size, *how) for size in scaling_ns] for name, how in makes.items()}
for name, row in ladder.items():
    print(f"{name:>9}: ID accuracy", *(f"{r.id_right.mean():.2f}" for r in row))

# %% [markdown]
# Without those trainings the claim is left open.

# %%
rises = [(a, b) for row in ladder.values() for a, b in itertools.pairwise(row)]
rise = {"measured": None, "reason": "nine more trainings: set scaling_ns, as the grid named scaling does"}
if rises:
    memory = ("training items", min(b.train_right.mean() - a.train_right.mean() for a, b in rises))
    found = [difference(b.id_right, a.id_right, memory) for a, b in rises]
    rise = min(found, key=lambda f: f["interval"][0]) | {"reason": "two sizes are too close"}
facts = {"rule": "> 0", "kind": "statistical", "paper": "exponents 2.0 to 2.28"} | rise
_ = run.claim("C8", "ID accuracy rises with N, smallest step of any decoder", **facts)

# %% [markdown]
# The table: what the paper says, what was measured, the control, the verdict.

# %%
run.table()

# %% [markdown]
# The verdicts alone, as the record keeps them.

# %% tags=["nbval-check-output"]
run.finish()

# %% [markdown]
# ## Limits, full scale, exercises
#
# **What this run does not show.** One decoder a condition: intervals speak of test items, not of trainings. At $n=16$ chance agreements cover almost everything at $k=1$, so cutoff 0 hardly occurs; the paper's $n=50$ is kinder. The law was measured on the data; $N_{req}$ of *trained* models would need many trainings. The rival by count is good at these sizes. C4 is judged against the best guess, since random tables give uneven answers.
#
# %% [markdown]
# C6 fails as we measure it, and the paper's own measure would pass: but it passes before the first block too, where no bridge can be known. Nor should this decoder have such a state, for it answers no better than the guess from $(x_2,x_3)$. With few items and a written bridge that guess is right for almost half of the NON-TREE items, so most of what the chain gets there is no composition; trained longer, it gains a little and the gap of C7c narrows.

# %% [markdown]
# **What was chosen after a look.** The runs with few items have a falling learning rate, because at a constant one C7's verdicts lay within their error of the rules; their number of steps, and N for the uncovered items, were set on such trials too. The rules, and the main comparison's constant rate, were not. C8 runs in the grid `scaling` only; the released code's variant that asks for equal targets along an edge is not built.

# %% [markdown]
# **A pretrained model.** `preset="real"` reads SmolLM2-135M: cities of one country grow alike with depth, and carrying one city's stream carries its country. That is the representation half of C5 alone.
#
# **Full scale.** `preset="full"` trains 8 blocks of width 768 at $n=50$ with batches of 4,096 for 62,500 steps: one large GPU (`device="cuda"`), hours a condition, nothing to download. Mamba's fused kernels are optional.
#
# **Next.** [cot_circuit](cot_circuit.ipynb): what a written chain does inside. [layernorm_removal](layernorm_removal.ipynb): attributions that add up.

# %% [markdown]
# **Exercise 1.** Which one further observation would cover most in Fig. 4? Can one make coverage *smaller*?
#
# <details><summary>Solution</summary>
#
# ```python
# tables = pm.make_compositional_dataset("two_hop", 3, 13, 0.9, seed=1).tables
# every = pm.all_inputs(3, 3)
# answers = pm.compute("two_hop", tables, every)[0][:, -1]
# before = tiny.covered(2).sum()
# gains = []
# for i in range(27):
#     seen = np.union1d(tiny.observed, [i])
#     gains.append(pm.SubstitutionGraph(every[seen], answers[seen], n_tokens=3).covered(2).sum() - before)
# assert max(gains) > 1  # one answer that opens several others
# assert min(gains) < 0  # a contradiction found: what hung on the refuted pair is covered no more
# ```
# </details>

# %% [markdown]
# **Exercise 2.** Let $f_2$ ignore the bridge: $t=f_2(x_3)$. What is covered at $k=2$, and why does the law of C2 not apply?
#
# <details><summary>Solution</summary>
#
# ```python
# inputs = pm.all_inputs(6, 3)[np.random.default_rng(0).permutation(216)[:150]]
# targets = np.array([4, 1, 0, 2, 5, 3])[inputs[:, 2]]
# # All fragments (x1, x2) are equivalent: one class of n^2, not n classes of n.
# assert len(set(pm.functional_equivalence_classes(inputs, targets, (0, 1), 2).values())) == 1
# assert pm.SubstitutionGraph(inputs, targets, n_tokens=6).covered(2).all()
# ```
# </details>

# %% [markdown]
# **Exercise 3.** Count the classes of fragments $(x_1,x_2)$ by true equivalence in both structures. Where does the factor $n$ come from?
#
# <details><summary>Solution</summary>
#
# ```python
# sizes = {}
# for task in ("two_hop", "non_tree"):
#     tables, _ = pm.draw_candidates(task, 6, 1.0, np.random.default_rng(0))
#     every = pm.all_inputs(6, 3)
#     answers = pm.compute(task, tables, every)[0][:, -1]
#     sizes[task] = len(set(pm.functional_equivalence_classes(every, answers, (0, 1), 1).values()))
# assert sizes["two_hop"] <= 6  # one class a bridge
# assert sizes["non_tree"] > 2 * sizes["two_hop"]  # one class for each bridge and x2
# ```
# </details>
