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
# # Why writing the middle step down makes a model compose what it never composed
#
# **Paper.** Xinhao Yao, Ruifeng Ren, Yun Liao, Lizhong Ding, Yong Liu, *Generalizing Compositionally from Learned Skills via Chain-of-Thought Training: A Theoretical and Structural Analysis for Reasoning*, ICLR 2026, arXiv 2502.04667. **Code.** `chen123CtrlS/T-CotMechanism`, MIT.
#
# **Topics.** Language models, chain of thought, mechanistic interpretability, generalisation. **Cost.** About a minute on one processor core, 1 GiB, no download.
#
# **Whose problem this is.** You write data to teach a model to reason.
# You may spell out the middle step, which is dear, or give the answer alone, which is cheap.
# On questions like those in training both can end up right.
# On new combinations of facts that it knows, one of the two fails, and no loss curve tells you so.
# This notebook says which, why, and where inside the network the difference sits.

# %% [markdown]
# ## Claims
#
# - **C1** The theory's step: the divergence of the answers is at most that of the bridges plus that of the answers given the bridge.
# - **C2** So an answer's loss, over all bridges, never exceeds the sum of the losses of its two hops.
# - **C3** After the same steps CoT has learnt ID questions, answer-only has not.
# - **C4** CoT answers most OOD questions, answer-only hardly any.
# - **C5** Answer-only loses more on OOD answers than both of CoT's hops together; of these, the second is the weaker (reported).
# - **C6** CoT has the bridge ready in shallower layers for ID than for OOD questions, and than answer-only has it.
# - **C7** It is used, in two stages: the stream where the bridge is written, then the bridge read back.
# - **C8** A few wrong answers in training cost less than many.

# %% [markdown]
# The words: a *two-hop question* asks for the boss of Ann's mother. *CoT* training writes the *bridge*, the mother, before the answer; *answer-only* training does not. *ID* questions combine facts that occur in training questions; the facts of *OOD* questions were learnt one by one only.

# %% [markdown]
# ## Parameters
#
# With `model` empty, small decoders are trained from nothing on bare tokens. With a name, that pretrained model is tuned on sentences (`preset="real"`), by the same cells.

# %% tags=["parameters"]
preset: str = "small"  # named parameter set of presets/cot_circuit.toml
seed: int = 0  # seed of the facts, the models, the batches and the bootstraps
model: str = ""  # empty: decoders trained here from nothing; else a model to tune on words
n_entities: int = 40  # entities; with a model to tune: countries
n_relations: int = 10  # relations; with a model to tune: properties of a country
out_degree: int = 10  # relations that lead away from each entity
ood_fraction: float = 0.15  # share of the facts that no training chain uses
two_hop_ratio: float = 3.6  # two-hop facts in training, per single fact of the other share
test_items: int = 200  # most questions in the ID test, and in the OOD test
noises: list[float] = [0.05, 0.4]  # shares of training chains spoilt in the noise arms
noise_target: str = "second"  # hop that the noise spoils
n_layer: int = 4  # blocks of the decoder
d_model: int = 64  # width of the residual stream
n_head: int = 4  # attention heads a block
dropout: float = 0.1  # dropout on embeddings and on what each block adds
rank: int = 16  # rank of the updates of a model to tune
learning_rate: float = 1e-2  # peak learning rate
weight_decay: float = 0.3  # decoupled weight decay of matrices
batch_size: int = 128  # sequences of a training step
steps: int = 600  # training steps of every arm
evaluations: int = 6  # points of the training curves
device: str = "cpu"  # where the models run: cpu, cuda or mps

# %% [markdown]
# ## Setup
#
# The method is `lib.methods.cot_circuit`, here `cc`; its functions take any Hugging Face decoder. Training data, logit lens and patching come from `lib.substrates`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import lib.methods.cot_circuit as cc
from lib.bench import show_source, start
from lib.substrates.completions import Completions, small_decoder
from lib.substrates.lens import lens_ranks, residual_streams, transplanted_logits

run = start("cot_circuit", globals())

# %% [markdown]
# ## Symbols and a first example
#
# | maths | code | meaning |
# |---|---|---|
# | $e_1,r_1,r_2,e_2,e_3$ | columns of `rows`, `cc.COLUMNS` | entity, two relations, bridge, answer |
# | $S_{ID},S_{OOD}$ | `~facts.unchained`, `facts.unchained` | facts that training chains use, and the others |
# | $\lambda$ | `two_hop_ratio` | training questions per fact of $S_{ID}$ |
# | $\xi$ | `noise` | share of spoilt training chains |
# | $X,C,Y$ | `question`, bridge, answer | question, chain, answer |
# | $E[i,x]$ | `residual_streams(...)[i]` | residual stream after block $i$ at token $x$; $i=0$: embeddings |
# | $W_U\,\mathrm{LN}_f$ | `lens_logits` | final norm and unembedding |
#
# **Why a bound on the chain bounds the answer.** The answer's loss sums over every bridge. Suppose that a model gives the true bridge probability 0.9, then the true answer 0.8, and after the wrong bridge still 0.5. Check by hand: $-\log(0.9\cdot0.8+0.1\cdot0.5)=0.26$, but $-\log0.9-\log0.8=0.33$.

# %%
truth = np.array([[1.0, 0.0], [0.0, 0.0]])  # rows: bridges, columns: answers
believed = np.array([[0.9 * 0.8, 0.9 * 0.2], [0.1 * 0.5, 0.1 * 0.5]])
print("answer {:.2f} nats, bridge then answer {:.2f} nats".format(*cc.divergences(truth, believed)))

# %% [markdown]
# Two facts, one question. Ann's (0) mother (3) is Bob (1), whose boss (4) is Cleo (2). Dots are prompt tokens, on which there is no loss. Look at the one token that differs.

# %%
ann = torch.tensor([[0, 3, 4, 1, 2]])  # e1, r1, r2, e2, e3
for supervision in cc.SUPERVISIONS:
    example = cc.worded(ann, supervision)
    targets = ["." if label < 0 else str(label) for label in example.labels[0].tolist()]
    print(f"{supervision:6} tokens {example.tokens[0].tolist()}  loss on {' '.join(targets)}")

# %% [markdown]
# ## The core step
#
# The method is in the data. Without CoT the loss is $\ell(e_3\mid e_1,r_1,r_2)$, with it
#
# $$\ell(e_2\mid e_1,r_1,r_2)+\ell(e_3\mid e_1,r_1,r_2,e_2).$$
#
# Each term looks like a skill that the single facts teach: $(e_1,r_1)\to e_2$, then $(e_2,r_2)\to e_3$. Look at how a chain is spoilt, row by row: full noise on the first hop is the *wrong chain*, our control. It has as many tokens and the right answer, but no bridge.

# %%
show_source(cc.worded)

# %% [markdown]
# At a test the model's own bridge is fed back, right or wrong, and only the *whole* output counts. No teacher helps.

# %%
show_source(cc.score)

# %% [markdown]
# ## Exact checks
#
# **C1.** The paper bounds the error of a model by $D_{KL}$ between test and training distributions of the answers; then it goes over to chains:
#
# $$D(P_Y\|Q_Y)\le D(P_{CY}\|Q_{CY})=D(P_C\|Q_C)+\mathbb E_{C\sim P}D(P_{Y|C}\|Q_{Y|C}).$$
#
# The inequality is data processing: forgetting $C$ loses information. The equality is the chain rule. We draw 1,000 pairs of joint distributions. If the bridge is a function of the answer, *the same* under $P$ and $Q$, nothing is forgotten. With two different functions the right side is infinite. Look for 0, `True`, `True`.


# %% tags=["nbval-check-output"]
def broken_inequalities(count=1000, bridges=5, answers=7):
    p, q = run.rng.dirichlet(np.full(bridges * answers, 0.3), (2, count)).reshape(2, count, bridges, answers)
    of_answer, of_chain = cc.divergences(p, q)
    return int((of_answer > of_chain + 1e-9).sum())


violations = broken_inequalities()
p, q = run.rng.dirichlet(np.ones(7), 2)
bridge_of = np.eye(5)[run.rng.integers(5, size=7)].T
print("violations:", violations)
print("equal for C = g(Y):", np.isclose(*cc.divergences(bridge_of * p, bridge_of * q)))
print("infinite for two functions:", np.isinf(cc.divergences(bridge_of * p, np.roll(bridge_of, 1, 0) * q)[1]))

# %% [markdown]
# **C2.** Where the true answer is certain, these divergences are losses, with the model in place of $Q$:
#
# $$-\log\sum_Cp(e_3|x,C)\,p(C|x)\;\le\;-\log p(e_2|x)-\log p(e_3|x,e_2).$$
#
# The right side is one term of the sum on the left: only a bug can break it. See the last line of the code: the sum *without* the true bridge, which may break it, is kept as a control.

# %%
show_source(cc.stagewise_nll)

# %% [markdown]
# An untrained decoder, and the promises of the data: no OOD question has a hop that a training chain uses, and no test question is in training. Look for zeros.

# %% tags=["nbval-check-output"]
tiny = cc.make_two_hop_facts(12, 4, 4, 0.3, 2.0, run.torch_generator())
with torch.random.fork_rng():
    torch.manual_seed(seed)
    untrained = small_decoder(16, 5, width=16).eval()


def broken_bounds(stages):
    return int((stages.marginal > stages.first + stages.second + 1e-5).sum())


def hops(rows):
    return {(e1, r1) for e1, r1, *_ in rows.tolist()} | {(e2, r2) for _, _, r2, e2, _ in rows.tolist()}


print("bounds broken:", broken_bounds(cc.stagewise_nll(untrained, tiny.ood_test, tiny.entities)))
print("OOD hops in training chains:", len(hops(tiny.train) & hops(tiny.ood_test)))
print("test questions in training:", len({*map(tuple, tiny.train.tolist())} & {*map(tuple, tiny.id_test.tolist())}))

# %% [markdown]
# ## Experiment
#
# **Data from nothing.** Each entity has random relations to others. A share of these facts is OOD: *all* facts are trained one by one, but only ID facts are put together in training questions. An OOD question puts together two OOD facts; mixed ones are left out.


# %%
def bare_tokens():
    """Facts, wording, single facts as completions, and how each hop of a question is asked as a single fact."""
    facts = cc.make_two_hop_facts(
        n_entities, n_relations, out_degree, ood_fraction, two_hop_ratio, run.torch_generator(), test_items
    )
    singles = [Completions.of(facts.atomic[:, :2], facts.atomic[:, 2:])]
    return facts, cc.Wording(), singles, {"e2": ("e1", "r1"), "e3": ("e2", "r2")}


# %% [markdown]
# **Fictional facts about real countries**, for a pretrained model (`model` set). That Paris is in France it half knows; the animal, colour and metal of France are made up. A country is OOD with all its properties. All names are single tokens, so that equal places hold equal things in all questions.

# %%
from lib.substrates.facts import load_countries
from lib.substrates.models import load_language_model

PROPERTIES = {
    " animal": " lion wolf horse dog cat bear fox eagle",
    " color": " red blue green yellow black white pink orange",
    " metal": " gold silver iron copper tin lead zinc steel",
}


def country_rows(ids, generator):
    """Rows (countries, properties, 5); the column r1 is not used."""
    named = [(ids(" " + c.capital), ids(" " + c.name)) for c in load_countries(10**6) if c.capital != c.name]
    places = [(a[0], b[0]) for a, b in named if len(a) == len(b) == 1][:n_entities]
    kinds = [(ids(kind)[0], [ids(" " + word)[0] for word in words.split()]) for kind, words in PROPERTIES.items()]
    draws = torch.randint(8, (len(places), n_relations), generator=generator).tolist()
    rows = [
        [[capital, 0, kind, country, words[i]] for (kind, words), i in zip(kinds[:n_relations], draw, strict=True)]
        for (capital, country), draw in zip(places, draws, strict=True)
    ]
    return torch.tensor(rows)


# %% [markdown]
# The sentences: *The animal of the country of Paris:* and, with CoT, *Paris is in France. The animal of France is wolf*. Short and long sentences are drawn in batches of their own, since padding would double the cost.


# %%
def countries():
    """As bare_tokens, in words."""
    _, tokenizer = load_language_model(model)

    def ids(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    generator = run.torch_generator()
    table = country_rows(ids, generator)
    table = table[torch.randperm(len(table), generator=generator)]
    outside, inside = table.split([round(ood_fraction * len(table)), len(table) - round(ood_fraction * len(table))])
    inside = inside.flatten(0, 1)[torch.randperm(inside[..., 0].numel(), generator=generator)]
    cut, outside, everything = round(two_hop_ratio * len(inside)), outside.flatten(0, 1), table.flatten(0, 1)
    entities = table[:, 0, 3]
    unchained = (everything[:, 3, None] == outside[:, 3]).any(1)
    facts = cc.TwoHopFacts(everything[:, [3, 2, 4]], unchained, inside[:cut], inside[cut:], outside, entities)
    located, valued = ("e1", *ids(" is in")), (*ids(" of"), "e2", *ids(" is"))
    wording = cc.Wording(
        (*ids("The"), "r2", *ids(" of the country of"), "e1", *ids(":")),
        (*located, "e2", *ids(". The"), "r2", *valued, "e3"),
    )
    hops = {"e2": located, "e3": (*ids("The"), "r2", *valued)}
    singles = [
        Completions.of(cc.fill(hops[name], rows), cc.fill((name,), rows))
        for name, rows in {"e2": table[:, 0], "e3": everything}.items()
    ]
    return facts, wording, singles, hops


# %% [markdown]
# Look at the sizes, and at one question of each kind with what must be written after it.

# %%
facts, wording, singles, hops = countries() if model else bare_tokens()
tests = {"ID": facts.id_test.to(device), "OOD": facts.ood_test.to(device)}
chance = 1 / 8 if model else 1 / n_entities
print(f"{len(facts.atomic)} facts, {int(facts.unchained.sum())} of them OOD; {len(facts.train)} training questions")
show = load_language_model(model)[1].decode if model else lambda row: row.tolist()
for name, rows in tests.items():
    question, chain = (cc.fill(part, rows[:1])[0] for part in (wording.question, wording.chain))
    print(f"{name}: {len(rows)} test questions, such as {show(question)} -> {show(chain)}")

# %% [markdown]
# **Models.** From nothing: pre-norm blocks, learned positions, tied embeddings, and dropout, which helps the second hop to carry over (grid `dropout`). Or the pretrained model with low-rank updates (LoRA) in the middle two thirds of its blocks.


# %%
import warnings


def build():
    if not model:
        vocabulary, sizes = n_entities + n_relations, {"layers": n_layer, "width": d_model, "heads": n_head}
        return small_decoder(vocabulary, 5, **sizes, dropout=dropout).to(device)
    import peft  # only here: the rest of the notebook does without

    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`")  # peft's matter with transformers
    network, _ = load_language_model(model)
    depth = network.config.num_hidden_layers
    return peft.get_peft_model(network.to(device), peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["v_proj", "o_proj", "gate_proj", "down_proj"],
        layers_to_transform=[*range(depth // 5, depth - depth // 7)],
    ))  # fmt: skip


# %% [markdown]
# **Arms**: answer-only, the paper's baseline; *wrong chain*, our control; CoT with a share $\xi$ of wrong answers. All see the same facts and take the same number of steps. Noise is drawn for training rows only.

# %%
from lib.substrates.training import Plan

arms = {"CoT": ("cot", 0.0, "second"), "answer only": ("answer", 0.0, "second"), "wrong chain": ("cot", 1.0, "first")}
arms |= {f"CoT, ξ = {noise:g}": ("cot", noise, noise_target) for noise in noises}
plan = Plan(steps, learning_rate, batch_size, weight_decay, warmup=steps // 12)
times = sorted({*np.linspace(0, steps, evaluations + 1).round().astype(int).tolist()} - {0})
answers = {
    supervision: {
        name: lambda network, rows=rows, how=supervision: (
            cc.score(network, rows, how, wording).answer.float().mean().item()
        )
        for name, rows in tests.items()
    }
    for supervision in cc.SUPERVISIONS
}

# %% [markdown]
# Training, where the time goes; weights and curves are cached, a second run takes seconds. Its curve is the share of right *answers*, which a wrong chain can have too.


# %%
def train_arm(name):
    supervision, noise, target = arms[name]
    noisy = {"noise": noise, "noise_target": target, "generator": run.torch_generator()}
    parts = [*singles, cc.worded(facts.train, supervision, wording, **noisy)]
    parts = [Completions(part.tokens.to(device), part.labels.to(device)) for part in parts]
    parts = parts if model else [Completions.join(parts)]
    weights = torch.tensor([len(part) for part in parts], dtype=torch.float)

    def sample(generator, size):
        return parts[int(torch.multinomial(weights, 1, generator=generator))].draw(generator, size)

    told = run.parameters.model_dump(exclude={"preset", "noises", "noise_target"})
    recipe = {"kind": "cot_circuit", "version": 1, **told, "arm": [supervision, noise, target]}
    network, curves = cc.teach(recipe, build, sample, plan, answers[supervision], times)
    tokens = sum(len(part) * part.tokens.shape[1] for part in parts) / sum(weights.tolist())
    return network.merge_and_unload() if model else network, curves, batch_size * tokens


trained = {name: train_arm(name) for name in run.progress(arms, "arms")}

# %% [markdown]
# Two checks before the result: does an arm know the single facts? And *whole* counts bridge and answer, which the wrong chain cannot have, so see its answers.

# %%
scores = {
    name: {kind: cc.score(trained[name][0], rows, arms[name][0], wording) for kind, rows in tests.items()}
    for name in arms
}


def knows(network):
    """Share of the single facts that a model completes."""
    right = [
        cc.next_log_probs(network, part.tokens[:, :-1].to(device)).argmax(-1).cpu() == part.tokens[:, -1]
        for part in singles
    ]
    return torch.cat(right).float().mean().item()


print(
    f"{'':14}single facts"
    + "".join(f"{f'{kind} {what}':>12}" for kind in tests for what in ("bridge", "answer", "whole"))
)
for name, by_kind in scores.items():
    shares = [
        part.float().mean().item() for seen in by_kind.values() for part in (seen.bridge, seen.answer, seen.whole)
    ]
    print(f"{name:14}{knows(trained[name][0]):12.2f}" + "".join(f"{share:12.2f}" for share in shares))

# %% [markdown]
# (Answer-only writes no bridge; its answer stands in all columns.) On bare tokens a chain as such, tokens to compute with, does not help: it must be the true one. Note also the first column: there the arms without true bridges have not even stored all single facts: their training answers look random to them, must be learnt by heart, and compete for the same weights. With CoT the chains *repeat* the single facts.
#
# So does answer-only fail on OOD questions for want of facts alone? Look at those questions both of whose facts it does know.

# %%
for name in ("answer only", "wrong chain", "CoT"):
    asked = [cc.next_log_probs(trained[name][0], cc.fill(prompt, tests["OOD"])).argmax(-1) for prompt in hops.values()]
    known = (torch.stack(asked, 1) == tests["OOD"][:, 3:]).all(1)
    right = scores[name]["OOD"].answer[known].sum()
    print(f"{name}: both facts known in {int(known.sum())} of {len(known)} OOD questions, of these {int(right)} right")

# %% [markdown]
# **Where the loss sits.** Per question, in nats: the answer at once, or the two hops and their marginal over all bridges. Look at the second hop on OOD questions.

# %%
losses = {}
for kind, rows in tests.items():
    direct = cc.next_log_probs(trained["answer only"][0], cc.fill(wording.question, rows))
    losses["answer only", kind] = -direct.gather(1, rows[:, 4:])[:, 0].double()
    for name in ("CoT", "wrong chain") if kind == "OOD" else ("CoT",):
        losses[name, kind] = cc.stagewise_nll(trained[name][0], rows, facts.entities.to(device), wording)
    stages = losses["CoT", kind]
    print(f"{kind:3} answer only {losses['answer only', kind].mean():.2f}; CoT hop 1 {stages.first.mean():.2f}, "
          f"hop 2 {stages.second.mean():.2f}, over all bridges {stages.marginal.mean():.2f}")  # fmt: skip

# %% [markdown]
# In the terms of Theorem 2, the first divergence is hop 1, the second hop 2. Both are far below the loss at once, because each is a skill that the single facts teach. Hop 2 is the harder one to reuse: on bare tokens a single fact has its entity first and its relation second, a chain the other way round and later.
#
# **The logit lens.** Blocks only ever add to the residual stream, so a stream halfway up can be read as if it were the last: $W_U\,\mathrm{LN}_f(E[i,x])$. Rank the true bridge among all tokens (0 is first); $1/(1+\mathrm{rank})$, averaged, is the MRR: 1 where the bridge is the top choice. See how short a reading is.

# %%
show_source(lens_ranks)

# %% [markdown]
# We read at the token *after which the bridge is written*: CoT at $r_2$ (in words: at the last *in*). Answer-only writes no bridge; we read where its first hop is complete, at $r_1$ (in words: at the capital). Look for the first depth with MRR of 0.9.
#
# A caution: the single facts themselves train $r_1\to e_2$. A bridge that is *legible* at $r_1$ need not be *used*.


# %%
def bridge_ranks(network, template, position, rows):
    streams = residual_streams(network, {"input_ids": cc.fill(template, rows)}, position)
    return lens_ranks(network, streams, rows[:, 3]).cpu()


# %% [markdown]
# Three arms, ID and OOD.

# %%
stage_one = wording.question + wording.chain[: wording.bridge]
first_hop = wording.question.index("r1" if "r1" in wording.question else "e1")
lens = {
    (name, kind): bridge_ranks(
        trained[name][0], *((wording.question, first_hop) if name == "answer only" else (stage_one, -1)), rows
    )
    for name in ("CoT", "answer only", "wrong chain")
    for kind, rows in tests.items()
}
depths = np.unique(np.linspace(0, len(lens["CoT", "ID"]) - 1, 8).round().astype(int)).tolist()
print("MRR at depths", depths)
for (name, kind), ranks in lens.items():
    print(f"{name:11} {kind:3} 0.9 at {cc.first_depth(ranks):2}: {(1 / (1 + ranks)).mean(1).numpy()[depths].round(2)}")

# %% [markdown]
# **Patching** asks whether a stream is used. Run two questions, the receiver and the giver. Copy the giver's stream at one depth and token into the receiver's run, and let the rest be computed anew. If the choice changes, this stream carried the information *and* somebody reads it from there. At depth 0 it is a swap of tokens; at the last depth and token it is the whole choice.

# %%
show_source(transplanted_logits)

# %% [markdown]
# Pairs agree in $r_2$ and differ in $e_1$ and bridge. Stage 1 ends where the bridge is written; stage 2 where the answer is, each run fed with its own true bridge. A third map swaps $r_2$ alone. We count how often the model's choice changes.


# %%
def spots(template):
    """Places of what varies between questions, and the last one."""
    return [i for i, part in enumerate(template) if isinstance(part, str) or i == len(template) - 1]


def changed(template, receivers, givers):
    """Whether the choice changes when one stream is the giver's, (depths, spots, M)."""
    network = trained["CoT"][0]
    base, source = (cc.fill(template, rows.to(device)) for rows in (receivers, givers))
    return (
        cc.trace(network, base, source, spots(template), depths) != cc.next_log_probs(network, base).argmax(-1)
    ).cpu()


stage_two = wording.question + wording.chain[:-1]
pairs = cc.partners(facts.id_test, ["r2"], ["e1", "e2", "e3"], run.torch_generator())
receivers, givers = (facts.id_test[index] for index in pairs)
relations, place = receivers[:, 2].unique(return_inverse=True)
swapped = receivers.clone()
swapped[:, 2] = relations[(place + 1) % len(relations)]
maps = {
    "stage 1": (stage_one, changed(stage_one, receivers, givers)),
    "stage 2": (stage_two, changed(stage_two, receivers, givers)),
    "stage 2, r₂ swapped": (stage_two, changed(stage_two, receivers, swapped)),
}

# %% [markdown]
# ## Figures
#
# **Learning.** Share of right answers against training. Left, the arms: look for ID before OOD in CoT, and for what the other two arms never learn. Right, the noise arms; without them, the same curves against tokens, since a chain is longer than an answer.

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
main = [name for name in arms if "ξ" not in name]
noisy = ["CoT", *(name for name in arms if "ξ" in name)]
for axes, names in zip(panels, (main, noisy if noises else main), strict=True):
    for k, name in enumerate(names):
        _, curves, tokens = trained[name]
        x = np.array(times) * (tokens / 1000 if axes is panels[1] and not noises else 1)
        _ = axes.plot(x, curves["ID"], color=f"C{k}", marker="o", label=f"{name}, ID")
        _ = axes.plot(x, curves["OOD"], color=f"C{k}", marker="s", ls="--", label=f"{name}, OOD")
    _ = axes.axhline(chance, color="0.6", lw=0.8, zorder=0)
    _ = axes.set(xlabel="training step", ylim=(-0.03, 1.03))
    _ = axes.legend(fontsize=8)
ends = ", ".join(f"{name} {trained[name][1]['OOD'][-1]:.2f}" for name in main)
_ = panels[0].set(ylabel="right answers (share; grey line: guessing)", title=f"OOD: {ends}")
worst = trained[noisy[-1]][1]
_ = panels[1].set_title(
    f"At ξ = {noises[-1]:g}: ID {worst['ID'][-1]:.2f}, OOD {worst['OOD'][-1]:.2f}"
    if noises
    else "The same against tokens"
)
if not noises:
    _ = panels[1].set_xlabel("thousand tokens trained on")
run.figure("learning", figure)

# %% [markdown]
# On bare tokens a true chain is learnt in two steps: ID questions first, and then, without any OOD question in training, OOD questions. The paper's answer-only models need over a million steps for ID questions, and never get to OOD. A few wrong answers cost little; many cost OOD questions more of their share than ID questions.
#
# **Where the bridge becomes legible.** The logit lens, by depth. Look where each curve crosses the grey line.

# %%
figure, axes = plt.subplots()
for k, name in enumerate(main):
    for kind, style in {"ID": "o-", "OOD": "s--"}.items():
        _ = axes.plot((1 / (1 + lens[name, kind])).mean(1), style, color=f"C{k}", label=f"{name}, {kind}")
_ = axes.axhline(0.9, color="0.6", lw=0.8, zorder=0)
_ = axes.xaxis.get_major_locator().set_params(integer=True)
_ = axes.set(xlabel="depth (blocks passed; 0: embeddings)", ylabel="mean reciprocal rank of the true bridge")
crossing = {kind: cc.first_depth(lens["CoT", kind]) for kind in tests}
_ = axes.set_title(f"CoT reaches 0.9 at depth {crossing['ID']} for ID and {crossing['OOD']} for OOD questions")
_ = axes.legend(fontsize=8)
run.figure("lens", figure)

# %% [markdown]
# With CoT the bridge is legible where it is to be written, and on bare tokens earlier for ID questions, whose first hops were trained at this very place. The wrong chain has nothing to write there.
#
# **Who reads it.** Share of choices that a patch changes. Look in stage 1 for the hand-over from $e_1,r_1$ to the last token, and in stage 2 for the columns that stay pale.

# %%
figure, panels = plt.subplots(1, 3, figsize=(11, 4), constrained_layout=True)
for axes, (name, (template, cells)) in zip(panels, maps.items(), strict=True):
    image = axes.imshow(cells.float().mean(-1), vmin=0, vmax=1, cmap="viridis", origin="lower", aspect="auto")
    _ = axes.set_xticks(
        range(cells.shape[1]), [template[i] if isinstance(template[i], str) else "last" for i in spots(template)]
    )
    _ = axes.set_yticks(range(len(depths)), depths)
    _ = axes.set(xlabel="token whose stream is patched", title=name)
    _ = axes.grid(visible=False)
_ = panels[0].set_ylabel("depth (blocks passed)")
_ = figure.colorbar(image, ax=panels, label="choices changed (share)")
run.figure("patching", figure)

# %% [markdown]
# On bare tokens the picture is as sharp as can be. Stage 1: the first block brings $e_1$ and $r_1$ to the last token, and from then on only that token counts. The bridge is *looked up there*, over the next blocks; what the lens reads at $r_1$ is not used. Stage 2: the bridge is taken from the chain, never from the stream at $r_2$ in which it was found, and $r_2$ is read in the first block. The words of the first hop are not consulted again. What was two hops is one hop, twice.
#
# **The bill.** Mean loss, ID and OOD. Look at OOD: answer-only against the sum of the two hops.

# %%
figure, axes = plt.subplots()
for k, kind in enumerate(tests):
    stages = losses["CoT", kind]
    bars = {
        "answer only": losses["answer only", kind],
        "CoT hop 1": stages.first,
        "CoT hop 2": stages.second,
        "CoT, all bridges": stages.marginal,
    }
    drawn = axes.bar(np.arange(4) + 0.4 * k - 0.2, [value.mean() for value in bars.values()], 0.38, label=kind)
    _ = axes.bar_label(drawn, fmt="%.2f", fontsize=9)
_ = axes.set_xticks(range(4), list(bars))
_ = axes.set(ylabel="loss of the answer or of a hop (nats)")
ood = losses["CoT", "OOD"]
_ = axes.set_title(
    f"OOD: {losses['answer only', 'OOD'].mean():.1f} nats at once, {(ood.first + ood.second).mean():.1f} in two hops"
)
_ = axes.legend()
run.figure("losses", figure)

# %% [markdown]
# On bare tokens answer-only is worse than guessing on OOD questions ($\log 40=3.7$ nats): it is sure of wrong answers. CoT's loss over all bridges is close to the sum of its hops, so the bound of C2 is nearly tight: hardly any other bridge helps.

# %% [markdown]
# ## Verdicts
#
# Intervals are bootstraps over test questions, one training seed. The control is the wrong chain wherever that makes sense. C4's limit for answer-only is five times chance (in words: once) plus three binomial deviations.


# %%
def judge(id, statement, statistic, counts, kind="statistical", **facts):
    """A statistic of resampled questions, which gets one index array (..., n) a count."""
    draws = [run.rng.integers(n, size=(1000, n)) for n in counts]
    ends = np.percentile(statistic(*draws), [2.5, 97.5])
    value = float(statistic(*(np.arange(n) for n in counts)))
    run.claim(id, statement, measured=value, interval=(float(ends[0]), float(ends[1])), kind=kind, **facts)


def share(name, kind, what="answer"):
    return getattr(scores[name][kind], what).float().cpu().numpy()


n_id, n_ood = (len(rows) for rows in tests.values())

# %% [markdown]
# C1, exact.

# %%
_ = run.claim(
    "C1",
    "draws in which the divergence of the answers exceeds that of the chains",
    measured=violations,
    rule="== 0",
    kind="exact",
    mutation="leave out the divergence of the bridges",
    paper="Theorem 2",
)

# %% [markdown]
# C2, exact, counts over trained chains and their questions; its control leaves the true bridge out of the sum.

# %%
stage_sets = [stages for stages in losses.values() if isinstance(stages, cc.StageLosses)]
without = int((losses["CoT", "ID"].without > losses["CoT", "ID"].first + losses["CoT", "ID"].second + 1e-5).sum())
_ = run.claim(
    "C2",
    "questions whose loss over all bridges exceeds the sum of the hops",
    measured=sum(broken_bounds(stages) for stages in stage_sets),
    rule="== 0",
    kind="exact",
    control=None if preset == "smoke" else ("true bridge left out", without),
    mutation="leave the true bridge out of the sum",
    paper="Theorem 2",
)

# %% [markdown]
# C3: ID questions. The wrong chain is judged by its answers alone, in its favour.

# %%
few = "these steps or these few questions do not decide it"
judge(
    "C3a", "CoT's share of ID questions wholly right", lambda i: share("CoT", "ID", "whole")[i].mean(-1), [n_id],
    rule=">= 0.95", control=("wrong chain", share("wrong chain", "ID").mean()), paper="about 1", reason=few,
)  # fmt: skip
judge(
    "C3b", "the same minus answer-only's share", lambda i: (share("CoT", "ID", "whole") - share("answer only", "ID"))[i].mean(-1), [n_id],
    rule=">= 0.3", control=("wrong chain", (share("wrong chain", "ID") - share("answer only", "ID")).mean()),
    paper="answer-only gets there after 1M steps", reason=few,
)  # fmt: skip

# %% [markdown]
# C4: OOD questions. Chance on bare tokens is one entity in all, in words one of eight.

# %%
judge(
    "C4a", "CoT's share of OOD questions wholly right", lambda i: share("CoT", "OOD", "whole")[i].mean(-1), [n_ood],
    rule=">= 0.6", control=("wrong chain", share("wrong chain", "OOD").mean()), paper=">= 0.9", reason=few,
)  # fmt: skip
guess = chance if model else 5 * chance
limit = guess + 3 * (guess * (1 - guess) / n_ood) ** 0.5
judge(
    "C4b", "answer-only's share of OOD questions right", lambda i: share("answer only", "OOD")[i].mean(-1), [n_ood],
    rule=f"<= {limit:.3f}", control=("CoT", share("CoT", "OOD").mean()), paper="about 0",
    reason="a pretrained model knows the first hop and can take it silently" if model else few,
)  # fmt: skip

# %% [markdown]
# C5: losses on OOD questions. Control of the first part: the hops of the wrong chain; of the second: ID questions, where both hops are known.


# %%
def saved(name, i):
    hops = losses[name, "OOD"]
    return (losses["answer only", "OOD"] - hops.first - hops.second).cpu().numpy()[i].mean(-1)


def weaker(kind, i):
    return (losses["CoT", kind].second - losses["CoT", kind].first).cpu().numpy()[i].mean(-1)


# %% [markdown]
# Both are means over OOD questions. The second is only reported: with the same seed, another rounding in training gave 0.55 and 0.21 nats, once above and once within its error of the 0.1 that we meant to ask for.

# %%
judge(
    "C5a", "OOD loss of answer-only minus the sum of CoT's hops (nats)", lambda i: saved("CoT", i), [n_ood],
    rule="> 0", control=("wrong chain", saved("wrong chain", np.arange(n_ood))), reason=few,
)  # fmt: skip
judge(
    "C5b", "OOD loss of hop 2 minus that of hop 1 (nats)", lambda i: weaker("OOD", i), [n_ood],
    kind="descriptive", rule=None, control=("ID questions", weaker("ID", np.arange(n_id))),
)  # fmt: skip

# %% [markdown]
# C6: depths at which the lens reaches 0.9; one more than the number of blocks where it never does. Control: the wrong chain. Against answer-only *not deeper* would let the control pass where both never get there; so we ask for a block less.


# %%
def crossing_depth(name, kind, i):
    reached = (1 / (1 + lens[name, kind])).numpy()[:, i].mean(-1) >= 0.9
    return np.where(reached.any(0), reached.argmax(0), len(reached))


for id, other in {"C6a": ("CoT", "OOD"), "C6b": ("answer only", "ID")}.items():
    count = n_ood if other[1] == "OOD" else n_id
    everyone = np.arange(n_id), np.arange(count)
    judge(
        id,
        f"depth of CoT's bridge, ID questions, minus that of {other[0]}, {other[1]}",
        lambda i, j, other=other: crossing_depth("CoT", "ID", i) - crossing_depth(*other, j),
        [n_id, count],
        rule="<= 0" if id == "C6a" else "<= -1",
        control=("wrong chain", crossing_depth("wrong chain", "ID", everyone[0]) - crossing_depth(*other, everyone[1])),
        paper="layer 3 against 5",
        reason="the bridge of ID questions is not legible earlier",
    )

# %% [markdown]
# C7: the stream at the last token, from the depth of C6 on, against those of $e_1$ and $r_1$; and the bridge read back against the same two. Controls: the same at depth 0; the two in place of the bridge.


# %%
early = [k for k, at in enumerate(spots(stage_one)) if stage_one[at] in ("e1", "r1") and at < len(wording.question)]


def gap(i, cells):
    shares = cells.float().numpy()[..., i].mean(-1)
    return shares[:, -1].min(0) - shares[:, early].max((0, 1)) if len(cells) else np.nan


def at_once(i, names):
    template, cells = maps["stage 2"]
    columns = [k for k, at in enumerate(spots(template)) if template[at] in names]
    return cells[0].float().numpy()[columns[-1:] if names == ("e2",) else columns][..., i].mean(-1).max(0)


# %% [markdown]
# Both count choices on ID questions.

# %%
someone, stage_one_cells = np.arange(len(receivers)), maps["stage 1"][1]
judge(
    "C7a", "choices of a bridge changed by the last token's stream minus those by e1's or r1's, once it is legible",
    lambda i: gap(i, stage_one_cells[np.array(depths) >= crossing["ID"]]), [len(receivers)], rule=">= 0.8",
    control=("depth 0", gap(someone, stage_one_cells[:1])), paper="rank 0 kept under patches of e1, r1",
    reason="the stream that is patched is not the only one that is read",
)  # fmt: skip
judge(
    "C7b", "choices of an answer changed by the bridge read back, patched at depth 0", lambda i: at_once(i, ("e2",)), [len(receivers)],
    rule=">= 0.8", control=("e1 or r1 instead", at_once(someone, ("e1", "r1"))), paper="changes the answer", reason=few,
)  # fmt: skip

# %% [markdown]
# C8: noise on the second hop. Control of the first part: the bridge, which this noise spares; of the second: the noisier arm in place of the clean one.

# %%
clean, low, high = (noisy[0], noisy[1], noisy[-1]) if len(noises) > 1 else ("CoT",) * 3
facts_of = {
    "C8a": (
        low,
        high,
        ">= 0.05",
        ("bridge instead of answer", (share(low, "ID", "bridge") - share(high, "ID", "bridge")).mean()),
    ),
    "C8b": (
        clean,
        low,
        ">= -0.05",
        ("the noisiest arm as the clean one", (share(high, "ID") - share(low, "ID")).mean()),
    ),
}
for id, (less, more, rule, control) in facts_of.items():
    statement = f"ID answers right: {'less noise minus more' if id == 'C8a' else 'none minus a little'}"
    if len(noises) > 1:
        difference = share(less, "ID") - share(more, "ID")
        judge(
            id, statement, lambda i, d=difference: d[i].mean(-1), [n_id], rule=rule, control=control,
            paper=".990 at ξ = .05, .866 at .4", reason=few,
        )  # fmt: skip
    else:
        _ = run.claim(
            id, statement, measured=None, rule=rule, kind="statistical", reason="no two noise arms in this run"
        )

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
# **What this run does not show.** One training seed: intervals are over questions. With three other seeds CoT's OOD share was between 0.8 and 1. At this size the answer-only model does not get to ID questions in the steps given, and stores a third of the single facts (at smaller learning rates up to half, with no better answers). Getting there (*grokking*) takes the paper a million steps. So C3 and C4 compare at equal steps, not at the end, and C6b reads its lens before it has learnt to compose: the paper's order of layers among *finished* models is not tested.
#
# **Noise.** The published generator, when first-hop noise is on, keeps a spoilt bridge for all later questions with the same first hop (exercise 2), test questions too. The paper's steep first-hop numbers are therefore not comparable with ours.

# %% [markdown]
# **A pretrained model.** `preset="real"` tunes SmolLM2-135M-Instruct by LoRA on fictional facts about real countries, by the same cells: five to ten minutes on one core, no download. One seed, 15 ID and 21 OOD questions, no noise arms: wide intervals, so C4a stays undecided. CoT is far ahead there too, per step and per token. But answer-only *and* the wrong chain get about half of the OOD answers, so C4b fails: the first hop, capital to country, was composed in pretraining. The lens sees the bridge only in the last blocks, for OOD questions no later than for ID. Patching finds the two stages again, with a late hand-over: up to two thirds of the blocks the bridge rests with the capital's two mentions.

# %% [markdown]
# **Full scale.** `preset="full"`: 2,000 entities, 200 relations, 8 blocks of width 768, 20,000 steps; of the order of an hour an arm on one large GPU (`device="cuda"`).
#
# **Next.** [pattern_matching](pattern_matching.ipynb): which unseen combinations a training set covers at all, before any training. [layernorm_removal](layernorm_removal.ipynb): making such readings of streams exact.

# %% [markdown]
# **Exercise 1.** Where do CoT's OOD errors come from? Show that a question is wholly right exactly if its bridge is right *and* hop 2 is right after the true bridge.
#
# <details><summary>Solution</summary>
#
# ```python
# rows, seen = tests["OOD"], scores["CoT"]["OOD"]
# second = cc.next_log_probs(trained["CoT"][0], cc.fill(stage_two, rows)).argmax(-1) == rows[:, 4]
# print(f"bridge {seen.bridge.float().mean():.2f}, hop 2 after the true bridge {second.float().mean():.2f}")
# # Greedy writing feeds back its own bridge; where that is right, it is the true one.
# assert not (seen.whole & ~seen.bridge).any()
# if not model:  # in words, the rest of the chain must be right as well
#     assert (seen.whole == (seen.bridge & second)).float().mean() > 0.98
# ```
# </details>

# %% [markdown]
# **Exercise 2.** A generator spoils a bridge with probability $\xi=0.05$, but then keeps the wrong bridge for all later questions with the same first hop, of which there are 20. What share of chains is really spoilt?
#
# <details><summary>Solution</summary>
#
# ```python
# rate, questions = 0.05, 20
# draws = run.rng.random((20_000, questions)) < rate
# spoilt = np.maximum.accumulate(draws, axis=1).mean()
# exact = 1 - np.mean((1 - rate) ** np.arange(1, questions + 1))
# print(f"simulated {spoilt:.3f}, exact {exact:.3f}")
# assert abs(spoilt - exact) < 0.01 and 0.38 < exact < 0.40
# ```
# </details>

# %% [markdown]
# **Exercise 3.** After the last block the lens finds the bridge at $r_1$ in the answer-only model. Show that there it cannot be used, whatever the lens says.
#
# <details><summary>Solution</summary>
#
# ```python
# network, last = trained["answer only"][0], len(lens["CoT", "ID"]) - 1
# base, source = (cc.fill(wording.question, rows.to(device)) for rows in (receivers, givers))
# own = cc.next_log_probs(network, base).argmax(-1)
# # Attention reads what enters a block; nothing reads an earlier token's stream after the last one.
# assert torch.equal(cc.trace(network, base, source, [first_hop], [last])[0, 0], own)
# assert cc.trace(network, base, source, [first_hop], [0]).shape == (1, 1, len(base))
# ```
# </details>
