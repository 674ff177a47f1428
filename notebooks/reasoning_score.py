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
# # Do a model's late layers know when its reasoning goes wrong?
#
# **Paper.** Zhongxiang Sun, Qipeng Wang, Haoyu Wang, Xiao Zhang, Jun Xu, *Detection and Mitigation of Hallucination in Large Reasoning Models: A Mechanistic Perspective*, ICLR 2026, arXiv 2505.12886. **Code.** `Jeryi-Sun/Reasoning_Hallucination`, licence unknown; not used here.
#
# **Topics.** Language models, hallucination detection, logit lens, reinforcement learning. **Cost.** About a minute on one processor core, 1 GiB, no download.
#
# **Whose problem this is.** A model writes its answer as a chain of steps.
# The chain reads well; one step of it is false, and all that follows leans on it.
# You would like a number per step, from inside the model, that says how hard it thought.
# You would like to flag bad chains with it, and to train the model towards thinking, not towards length.
# This notebook checks each of the three, beside simple baselines.

# %% [markdown]
# ## Claims
#
# - **C1** The Reasoning Score is a proper divergence: from 0 to $\ln2$, symmetric, 0 only for equal predictions.
# - **C2** Rewarding by a potential keeps the best policy, and lowers each value by the potential, if the potential is 0 at the end.
# - **C3** With $\gamma=1$ it does not move trajectory-level GRPO advantages at all.
# - **C4** The score, or a pattern of it, tells wrong chains from right ones, in the paper's direction, where scores of other chains do not.
# - **C5** The detector made of them, RHD, beats the model's perplexity.
# - **C6** RHD adds to perplexity.
# - **C7** A step led astray by an irrelevant remark has a lower score than a right one at the same place.
# - **C8** GRPO with the shaped reward, GRPO-R, ends at least as accurate as GRPO (reported).

# %% [markdown]
# ## Parameters
#
# With `model` empty, a small decoder is trained here on made-up facts, whose truth is known at every step. With a name (preset `real`), that pretrained model writes about countries and solves word problems, by the same cells; nothing is then trained.

# %% tags=["parameters"]
preset: str = "small"  # named parameter set of presets/reasoning_score.toml
seed: int = 0  # seed of the facts, the model, the samples and the bootstraps
model: str = ""  # empty: a decoder trained here; else a pretrained one, on countries and sums
n_entities: int = 40  # entities of the made-up facts
n_relations: int = 5  # relations; each leads from every entity to one other
rare_rate: float = 0.08  # how often training asks a rare fact, per common one
noop_rate: float = 0.2  # share of training prompts with an irrelevant aside
hops: int = 5  # steps of the chains that are scored and rewarded
n_layer: int = 4  # blocks of the decoder trained here
d_model: int = 64  # width of its residual stream
train_steps: int = 240  # its training steps
batch_size: int = 128  # sequences of a training step
n_traces: int = 800  # chains to score, half of them with an aside
n_problems: int = 80  # word problems for a pretrained model
n_samples: int = 4  # further samples a prompt, for the baselines that need them
late_layers: list[int] = []  # depths compared with the last; empty: the last half
early_window: int = 3  # first steps, whose fluctuation is pattern 1
late_share: float = 0.4  # last share of the steps, whose attention is pattern 2
tau_quantile: float = 0.9  # quantile of the scores above which a step overthinks
repeats: int = 5  # random halvings of the chains into fit and test
grpo_updates: int = 28  # policy updates of an arm, two on each set of samples
grpo_prompts: int = 16  # prompts a set of samples
group_size: int = 8  # samples a prompt
grpo_rate: float = 1e-4  # learning rate of the policy
grpo_seeds: int = 2  # seeds an arm
gamma: float = 0.9  # discount of the second shaped arm; the first has 1
mean_potential: float = 0.2  # mean clipped score of a step, set by alpha
n_mdps: int = 100  # random decision processes of the exact check

# %% [markdown]
# ## Setup
#
# The method is `lib.methods.reasoning_score`, here `rs`; its functions take any Hugging Face decoder.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import lib.methods.reasoning_score as rs
from lib.bench import show_source, start
from lib.substrates.conversations import encode_prompts, respond
from lib.substrates.hooks import Site, capture

run = start("reasoning_score", globals())

# %% [markdown]
# ## Symbols and a first example
#
# | maths | code | meaning |
# |---|---|---|
# | $c_k$ | `spans[b, k]` | step $k$, from its first token to before the next step's |
# | $q_j(t)$ | `lens_logits` | next-token distribution read at depth $j$, where token $t$ is predicted |
# | $J$, $N$ | `late_layers`, last depth | late depths, and the last |
# | $R^k$ | `reasoning_score` | Reasoning Score of step $k$, in nats |
# | $CV$, AttnScore, $PCC$ | `rhd_features` | fluctuation of early steps, attention on bad ones, correlation with perplexity |
# | $\tau$ | `tau_quantile` | score above which a step overthinks |
# | $\tilde R,\ \Phi$ | `clipped_score`, potential | bounded score; $\Phi=-\tilde R$ |
# | $\gamma$ | `gamma` | discount of the potential |
# | $A_i$ | `grpo_advantages` | how much better than its group a sample did |

# %% [markdown]
# **By hand.** An early layer is sure of *cat*, the last layer gives *cat* and *dog* a half each. Their mean is (3/4, 1/4). So $\mathrm{JSD}=\frac12\ln\frac1{3/4}+\frac12(\frac12\ln\frac{1/2}{3/4}+\frac12\ln\frac{1/2}{1/4})\approx0.216$ nats. Two layers that exclude each other have $\ln2\approx0.693$, the most there can be.

# %%
sure, torn, other = (torch.tensor(p).double().log() for p in ([1.0, 0.0], [0.5, 0.5], [0.0, 1.0]))
print(f"sure / torn {rs.js_divergence(sure, torn):.3f}, sure / other {rs.js_divergence(sure, other):.3f} nats")

# %% [markdown]
# **Shaping by hand.** Three steps score 0.2, 0.1 and 0.3, the answer is right. Look at the sums: adding scores pays for them; with the potential all but the outcome cancels.

# %%
by_hand = torch.tensor([0.2, 0.1, 0.3])
for form in rs.REWARD_FORMS:
    paid = rs.step_rewards(torch.tensor(1.0), by_hand, form, alpha=1.0, tau=1.0)
    print(f"{form:10}", paid.numpy().round(2), f"sum {paid.sum():.1f}")

# %% [markdown]
# ## The core step
#
# Blocks add to the residual stream, so it can be read before the end as if it were the end: final norm, then unembedding (the *logit lens*). Where the reading of late depths still differs from the output, the late layers did work:
#
# $$R^k=\frac1{|c_k|}\sum_{t\in c_k}\frac1{|J|}\sum_{j\in J}\mathrm{JSD}\big(q_N(t),q_j(t)\big).$$
#
# Look at the loop over pieces: a vocabulary of 49,152 times depths times tokens would not fit in memory at once.

# %%
show_source(rs.token_signals)

# %% [markdown]
# The detector's four terms. *Late* steps are the last share, the others *early*; an early step is *bad* if it is shallow (lowest quarter) or overthinks ($\ge\tau$). RHD is their weighted sum, and a regression finds the weights:
#
# $$H_C=\alpha_1\,\mathrm{Avg}(R)+\alpha_2\,CV(C)+\alpha_3\,\mathrm{AttnScore}(C)+\alpha_4\,PCC(R,PPL).$$

# %%
show_source(rs.rhd_features)

# %% [markdown]
# And the reward. The state is the chain so far, its potential minus the bounded score of the step just done: $\bar r_t=r_t+\gamma\Phi(s_{t+1})-\Phi(s_t)$, with $\Phi=0$ at the prompt and after the last step. GRPO compares samples of one prompt: a step's advantage $A$ is the sum of its own and later rewards, normalised over the group, and with $\rho$ the new probability of a token over the old one it minimises
#
# $$-\mathbb E\min\big(\rho A,\ \mathrm{clip}(\rho,1\pm0.2)\,A\big)+\beta\,KL(\text{policy}\,\|\,\text{reference}).$$

# %%
show_source(rs.step_rewards)

# %% [markdown]
# ## Exact checks
#
# **C1.** Random pairs of distributions, in double precision. The digest of the paper that we had prints scores of 2.7 and 3.3: above $\ln2$, so with a scale that it does not state. We report nats. Look for 0.

# %% tags=["nbval-check-output"]
logp, logq = (torch.randn(2, 2000, 20, generator=run.torch_generator(), dtype=torch.float64) * 4).log_softmax(-1)
there, back = rs.js_divergence(logp, logq), rs.js_divergence(logq, logp)
wrong = (there <= 1e-12) | (there > np.log(2) + 1e-12) | ((there - back).abs() > 1e-12)
wrong |= rs.js_divergence(logp, logp).abs() > 1e-12
bounds_broken = int(wrong.sum())
print("pairs that break the bounds:", bounds_broken)

# %% [markdown]
# **C2.** Random decision processes (20 states, 4 actions, 6 steps, random rewards and potential), solved backwards from the end. Shaped rewards telescope: the discounted sum from step $t$ loses $\Phi(s_t)$, whatever is done later. So no choice changes, and $V'_t=V_t-\Phi$.
#
# Two slips are easily made, and both are in reach here: a potential that is not 0 at the end, and a $\gamma<1$ in the potential while the return is a plain sum, as in GRPO. Look for 0, then for both slips.

# %% tags=["nbval-check-output"]
P = run.rng.dirichlet(np.full(20, 0.2), (n_mdps, 20, 4))
rewards, potential = run.rng.normal(size=(n_mdps, 6, 20, 4)), run.rng.normal(size=(n_mdps, 20))


def changed(discount, shaping, ends_at_0=True):
    """Processes whose best actions, or values up to the potential, are changed by shaping."""
    V, actions = rs.backward_induction(P, rewards, discount)
    tables = rs.shaped_tables(P, rewards, potential, shaping, ends_at_0)
    shaped, chosen = rs.backward_induction(P, tables, discount)
    off = np.abs(shaped[:, :-1] - V[:, :-1] + potential[:, None]).max((1, 2)) > 1e-9
    return (chosen != actions).any((1, 2)), off


optimum_moved = int(sum(np.logical_or(*changed(g, g)).sum() for g in (1.0, 0.9)))
print("same discount:", optimum_moved, "of", 2 * n_mdps, "changed")
mixed, ended = changed(1.0, 0.9)[0], changed(0.9, 0.9, ends_at_0=False)[0]
print("a plain sum of rewards, shaped with a discount, changes more than half:", bool(mixed.mean() > 0.5))
print("a potential after the end changes more than half:", bool(ended.mean() > 0.5))

# %% [markdown]
# **C3.** GRPO compares the $G$ samples of a prompt. Over a whole sample the shaped reward is the outcome minus $\Phi(\text{prompt})$, which the group shares: subtracting the mean removes it. What is left to shape are *step-level* advantages, the sum of a step's own and later rewards. Look for 0, then True.

# %% tags=["nbval-check-output"]
outcome = (torch.rand(50, 8, generator=run.torch_generator()) < 0.5).double()
drawn = torch.rand(50, 8, 5, generator=run.torch_generator(), dtype=torch.float64)
with_score, without = (rs.step_rewards(outcome, drawn, form, alpha=1, tau=0.9) for form in ("potential", "outcome"))
moved = {
    level: rs.grpo_advantages(with_score, level) - rs.grpo_advantages(without, level)
    for level in ("trajectory", "step")
}
advantages_moved = moved["trajectory"].abs().max().item()
print("trajectory-level advantages moved:", int((moved["trajectory"].abs() > 1e-9).sum()))
print("step-level advantages moved:", bool((moved["step"].abs() > 1e-3).any()))
print("equal rewards give zeros:", bool((rs.grpo_advantages(torch.full((1, 8, 5), 0.1), "step") == 0).all()))

# %% [markdown]
# ## Experiment
#
# **Made-up facts.** A relation leads from each entity to another, at random. Most facts are common in training, some rare, some never seen: of these the model will say something, fluent and false. A prompt names an entity and relations; the chain takes them one by one. An *aside*, a relation after `(`, is to be ignored: the no-operation clause of the paper's GSM-NoOp.

# %%
EQUALS, END, ASIDE = range(n_entities + n_relations, n_entities + n_relations + 3)
source = run.torch_generator()
tails = torch.randint(n_entities, (n_entities, n_relations), generator=source)
kind = torch.multinomial(torch.tensor([0.75, 0.13, 0.12]), tails.numel(), True, generator=source).view_as(tails)
kind[:, 0] = torch.where((kind > 0).all(1), 0, kind[:, 0])  # every entity has a common fact to go on with
frequency = {"training": [1, rare_rate, 0], "seen": [1, 1, 0], "any": [1, 1, 1]}

# %% [markdown]
# **Questions**: where to begin and which relations to follow, the chain that is true, and now and then an aside.


# %%
def questions(count, facts, generator, steps=hops, aside=False):
    """Prompts (count, p) and the true chains (count, 3 * steps): relation, entity, end, and so on."""
    entity = begin = torch.randint(n_entities, (count,), generator=generator)
    weights, walk = torch.tensor(frequency[facts], dtype=torch.float)[kind], []
    for _ in range(steps):
        relation = torch.multinomial(weights[entity], 1, generator=generator)[:, 0]
        entity = tails[entity, relation]
        walk += [relation + n_entities, entity, torch.full_like(entity, END)]
    chains = torch.stack(walk, 1)
    prompts = torch.cat([begin[:, None], chains[:, ::3], torch.full((count, 1), EQUALS)], 1)
    if aside:
        place = torch.randint(1, steps + 2, (count, 1), generator=generator) - 0.5
        other = n_entities + torch.randint(n_relations, (count, 1), generator=generator)
        order = torch.cat([torch.arange(steps + 2.0).expand(count, -1), place, place], 1).argsort(dim=1, stable=True)
        prompts = torch.cat([prompts, torch.full_like(other, ASIDE), other], 1).gather(1, order)
    return prompts, chains


# %% [markdown]
# **The model**: four pre-norm blocks with RMSNorm, trained on chains of one to five steps; weights are cached. The pretrained model is only loaded.

# %%
from transformers import LlamaConfig, LlamaForCausalLM

from lib.substrates.completions import Completions, completion_loss
from lib.substrates.models import load_language_model
from lib.substrates.training import Plan, cached_model, train


def build():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=n_entities + n_relations + 3, hidden_size=d_model, intermediate_size=2 * d_model,
        num_hidden_layers=n_layer, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=8 * hops,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    ))  # fmt: skip


# %% [markdown]
# Chains of one to five steps train it, a share of them with an aside.


# %%
def fit(network):
    source = run.torch_generator()
    shares = {False: round(6000 * (1 - noop_rate)), True: max(1, round(6000 * noop_rate))}
    sets = [
        Completions.of(*questions(share, "training", source, steps, aside))
        for steps in range(1, hops + 1)
        for aside, share in shares.items()
    ]
    plan = Plan(train_steps, 3e-3, batch_size, warmup=20)
    train(network, Completions.join(sets).draw, completion_loss, plan, generator=source)


# %% [markdown]
# Trained once for each recipe, then read from the cache.

# %%
told = {
    "seed", "n_entities", "n_relations", "rare_rate", "noop_rate", "hops", "n_layer", "d_model", "train_steps", "batch_size"
}  # fmt: skip
recipe = {"kind": "reasoning_score", "version": 1} | run.parameters.model_dump(include=told)
network, tokenizer = load_language_model(model) if model else (cached_model(recipe, build, fit), None)

# %% [markdown]
# **Writing chains.** Prompts of unequal length are padded on the left. EigenScore wants an embedding of each sample: the stream half-way up, at the last token read.


# %%
def write(prompts, count, generator=None):
    """What the model writes after prompts (a list of rows), (B, count), sampled or greedy; and embeddings (B, d)."""
    longest, middle = max(map(len, prompts)), Site("resid_post", network.config.num_hidden_layers // 2 - 1)
    padded = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0), value=-1) for row in prompts])
    written, embedded = [], []
    for rows in padded.split(40 if model else 1000):
        with capture(network, [middle]) as seen:
            written.append(respond(network, rows.clamp(min=0), rows >= 0, count, generator)[:, longest:])
        embedded.append(seen[middle][:, -1])
    return torch.cat(written), torch.cat(embedded)


# %% [markdown]
# **The model's own verdict**, P(True), if it can read English: behind each chain the question whether it is right, and the log-odds of *No* against *Yes*.


# %%
def self_check(rows, spans):
    """Log-odds of No against Yes after each chain, (B,), from its tokens (B, S) and the spans of its steps."""
    texts = [
        tokenizer.decode(row[: span.max()], skip_special_tokens=True) for row, span in zip(rows, spans, strict=True)
    ]
    asked = [f"{text}\nIs the last answer right in every step? Yes or No:" for text in texts]
    tokens, mask = encode_prompts(tokenizer, asked, network.config.max_position_embeddings)
    words = [tokenizer(word, add_special_tokens=False).input_ids[0] for word in (" No", " Yes")]
    odds = []
    for t, m in zip(tokens.split(40), mask.split(40), strict=True):
        place = (m.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            logits = network(t, attention_mask=m.long(), position_ids=place, logits_to_keep=1).logits[:, -1, words]
        odds.append(logits[:, 0] - logits[:, 1])
    return torch.cat(odds).numpy()


# %% [markdown]
# **A task** knows its prompts, how a completion splits into steps, and which of them are right.

# %%
from dataclasses import dataclass
from typing import Any


@dataclass
class Task:
    """Prompts, whether each has an aside, tokens to write, and judge(i, completion) -> spans, right steps, answer."""

    prompts: list
    aside: np.ndarray
    count: int
    greedy: bool
    judge: Any


# %% [markdown]
# **Reading chains.** Of each chain we keep what the model's inside says (score, attention), what its outside says (surprisal, entropy), and how its samples agree.

# %%
from torch.nn.utils.rnn import pad_sequence


def read(task):
    """Arrays of a task's chains: per step R, ppl, attention, right; per chain wrong, the baselines, rows, spans."""
    source = run.torch_generator()
    written, _ = write(task.prompts, task.count, None if task.greedy else source)
    judged = [task.judge(i, row) for i, row in enumerate(written)]
    rows = pad_sequence([torch.cat(pair) for pair in zip(task.prompts, written, strict=True)], batch_first=True)
    places = [torch.tensor(spans) + len(prompt) for prompt, (spans, *_) in zip(task.prompts, judged, strict=True)]
    spans = pad_sequence(places, batch_first=True, padding_value=-1)
    seen = rs.step_signals(network, rows, spans, late_layers)
    right = pad_sequence([torch.tensor(part) for _, part, _ in judged], batch_first=True).numpy()
    again, embedded = write([p for p in task.prompts for _ in range(n_samples)], task.count, source)
    answers = [task.judge(i // n_samples, row)[2] for i, row in enumerate(again)]
    differ = np.array([a != judged[i // n_samples][2] for i, a in enumerate(answers)]).reshape(-1, n_samples)
    R, surprisal, entropy = (part.numpy() for part in (seen.score, seen.surprisal, seen.entropy))
    tokens = (spans[..., 1] - spans[..., 0]).numpy()
    shares = tokens / tokens.sum(1, keepdims=True)
    ppl = np.exp(surprisal)
    baselines = {
        "mean perplexity": np.nansum(shares * surprisal, 1), "max step perplexity": np.nanmax(ppl, 1),
        "entropy": np.nansum(shares * entropy, 1), "chain length": tokens.sum(1), "self-consistency": differ.mean(1),
        "EigenScore": rs.eigen_score(embedded.unflatten(0, (-1, n_samples))),
    }  # fmt: skip
    if tokenizer:
        baselines["P(True)"] = self_check(rows, spans)
    return {"R": R, "ppl": ppl, "attention": seen.attention.numpy(), "right": right, "wrong": ~right.all(1), "aside": task.aside,
            "baselines": baselines, "rows": rows, "spans": spans}  # fmt: skip


# %% [markdown]
# The task on made-up facts, sampled at temperature 1. Unseen facts are allowed in its prompts.


# %%
def made_up():
    source, half = run.torch_generator(), n_traces // 2
    asked = [questions(half, "any", source, aside=aside) for aside in (False, True)]
    truth = torch.cat([chains for _, chains in asked]).unflatten(1, (hops, 3))
    spans = [[3 * k, 3 * k + 3] for k in range(hops)]

    def judge(i, row):
        return spans, (row.view(hops, 3) == truth[i]).all(1).tolist(), row[-2].item()

    prompts = [row for rows, _ in asked for row in rows]
    return Task(prompts, np.arange(2 * half) >= half, 3 * hops, False, judge)


# %% [markdown]
# **Countries** (preset `real`). The line of a capital is continued by country, continent and demonym, greedily. The aside is *(twin of another city)*. **Word problems** have two steps, of which the second adds; half of them carry a remark about colour. (A first set also took things away: SmolLM2 solved one in ten, and too few chains were right.) Both have known truth; the steps split at `;` and `.`.


# %%
from lib.substrates.facts import load_countries

LINES = "City: Warsaw; Country: Poland; Continent: Europe; Demonym: Polish.\nCity: Nairobi; Country: Kenya; Continent: Africa; Demonym: Kenyan.\nCity: Lima; Country: Peru; Continent: Americas; Demonym: Peruvian.\n"
SOLVED = "Question: Sam has 3 boxes of 4 pens. Then Sam finds 2 more. How many pens does Sam have?\nAnswer: 3 * 4 = 12. 12 + 2 = 14.\n\nQuestion: Mia has 5 eggs and gets 8 more. Then Mia finds 6 more. How many eggs does Mia have?\nAnswer: 5 + 8 = 13. 13 + 6 = 19.\n\n"


def in_words(texts, truths, aside, marks, count, agrees):
    """A task whose completions are split after marks; truths are the right step values of each prompt."""

    def judge(i, row):
        pieces, spans, begin = [tokenizer.decode([token]) for token in row.tolist()], [], 0
        for end, piece in enumerate(pieces, 1):
            if any(mark in piece for mark in marks) or end == count:
                spans.append([begin, end])
                begin = end
                if len(spans) == len(truths[i]) or "\n" in piece:
                    break
        steps = ["".join(pieces[a:b]).strip(" ;.\n") for a, b in spans]
        right = [agrees(step, truth) for step, truth in zip(steps, truths[i], strict=False)]
        return spans, right + [False] * (len(truths[i]) - len(right)), steps[-1]

    return Task([torch.tensor(tokenizer(text).input_ids) for text in texts], aside, count, True, judge)


# %% [markdown]
# The prompts of both, with their truths.


# %%
def countries():
    known = [c for c in load_countries() if c.continent and c.demonym and c.name not in ("Poland", "Kenya", "Peru")]
    known = known[: n_traces // 2]
    twins = [known[i].capital for i in run.rng.permutation(len(known))]
    cities = [c.capital for c in known] + [
        f"{c.capital} (twin of {twin})" for c, twin in zip(known, twins, strict=True)
    ]
    truths = 2 * [[c.name, c.continent, c.demonym] for c in known]

    def agrees(step, truth):
        said = step.split(":")[-1].strip()
        return said.startswith(truth) or (truth == "Americas" and said in ("America", "North America", "South America"))

    aside = np.arange(2 * len(known)) >= len(known)
    return in_words([f"{LINES}City: {city}; Country:" for city in cities], truths, aside, ";.\n", 14, agrees)


# %% [markdown]
# And of the other, worked out as they are made.


# %%
def word_problems():
    texts, truths, rng = [], [], run.rng
    for i in range(n_problems):
        (a, b, c), many = rng.integers(2, 10, 3), rng.integers(2)
        who, what = rng.choice(["Tom", "Anna", "Ben", "Lucy"]), rng.choice(["apples", "books", "coins", "cards"])
        first, x = (f"has {a} boxes of {b} {what}", a * b) if many else (f"has {a} {what} and gets {b} more", a + b)
        remark = f" {c + 1} of them are red." if 2 * i >= n_problems else ""
        asked = f"{who} {first}.{remark} Then {who} finds {c} more. How many {what} does {who} have?"
        texts.append(f"{SOLVED}Question: {asked}\nAnswer:")
        truths.append([int(x), int(x + c)])
    aside = 2 * np.arange(n_problems) >= n_problems
    return in_words(texts, truths, aside, ".\n", 26, lambda step, truth: step.split("=")[-1].strip() == str(truth))


# %% [markdown]
# Read them. Look at how often each step is right, and the whole chain: a detector needs chains of both kinds.

# %%
tasks = {"countries": countries, "word problems": word_problems} if model else {"made-up facts": made_up}
chains = {name: read(task()) for name, task in run.progress(tasks.items(), "tasks")}
for name, chain in chains.items():
    for label, rows in {"plain": ~chain["aside"], "with aside": chain["aside"]}.items():
        right = chain["right"][rows]
        print(f"{name}, {label}: {len(right)} chains, right by step {right.mean(0).round(2)}, whole {right.all(1).mean():.2f}; "
              f"mean R {np.nanmean(chain['R'][rows]):.3f}, largest {np.nanmax(chain['R'][rows]):.3f} nats")  # fmt: skip
largest_score = max(np.nanmax(chain["R"]) for chain in chains.values())
usable = {name: chain for name, chain in chains.items() if min(chain["wrong"].sum(), (~chain["wrong"]).sum()) >= 30}
print("too few chains of a kind to judge a detector:", sorted(chains.keys() - usable.keys()) or "nowhere")

# %% [markdown]
# **Detection.** Thresholds and weights come from one half of the chains, the area under the ROC curve (AUC) from the other; five halvings. The paper's reviewers suspect fits on the test half, so we are strict. Intervals: bootstrap over right and over wrong chains, the fits kept. See how the two halves are kept apart.

# %%
show_source(rs.held_out_scores)

# %% [markdown]
# Beside RHD: perplexity, entropy, length, and two baselines that need further samples, self-consistency (share of other final answers; in place of SelfCheckGPT) and EigenScore. A pretrained model is also asked for its own verdict, P(True). A language model as a critic and a process reward model need another, larger model: of them we know only the paper's figures. Look for who leads.
#
# In the regressions perplexity enters as the logarithm of the mean surprisal. A first run took the surprisal itself, which is very skewed: any four added columns, even noise, cost 0.02 AUC.


# %%
def features_of(chain, fit):
    shallow, tau = np.nanquantile(chain["R"][fit], [0.25, tau_quantile])
    options = {"early_window": early_window, "late_share": late_share, "shallow": shallow, "tau": tau}
    return rs.rhd_features(chain["R"], chain["ppl"], chain["attention"], **options)


def regressions(chain, order=slice(None)):
    """Columns of the three regressions; `order` deals the four terms to other chains."""
    ppl = np.log(chain["baselines"]["mean perplexity"] + 1e-6)[:, None]
    return {
        "RHD": lambda fit: features_of(chain, fit)[order],
        "RHD + perplexity": lambda fit: np.hstack([features_of(chain, fit)[order], ppl]),
        "perplexity, fitted": lambda fit: ppl,
    }


# %% [markdown]
# Fitted on one half, judged on the other.


# %%
def detect(chain):
    """Held-out scores and AUCs (point first, then 1000 bootstrap draws) by detector."""
    wrong, folds = chain["wrong"], rs.halvings(chain["wrong"], repeats, run.rng)
    counts = np.ones((1001, len(wrong)))
    for n in (wrong, ~wrong):
        counts[1:, n] = run.rng.multinomial(n.sum(), np.full(n.sum(), 1 / n.sum()), 1000)
    fitted = {name: rs.held_out_scores(columns, wrong, folds) for name, columns in regressions(chain).items()}
    scores = fitted | chain["baselines"]
    auc = {name: rs.held_out_auc(score, wrong, folds, counts) for name, score in scores.items()}
    return {"folds": folds, "counts": counts, "scores": scores, "auc": auc}


detected = {name: detect(chain) for name, chain in usable.items()}
for name, found in detected.items():
    print(name)
    for detector, (auc, *draws) in found["auc"].items():
        print(f"  {detector:22} AUC {auc:.3f}  [{np.quantile(draws, 0.025):.3f}, {np.quantile(draws, 0.975):.3f}]")

# %% [markdown]
# Two controls, means of ten: RHD fitted on shuffled labels, and perplexity beside the four terms *of other chains*, in place of RHD's own. The first should be near a half; the second shows what four columns cost that know nothing.


# %%
def controls(chain, folds):
    """AUC on the true labels of RHD fitted on shuffled ones, and of perplexity with terms dealt to other chains."""
    wrong, luck, noise = chain["wrong"], [], []
    for order in (run.rng.permutation(len(wrong)) for _ in range(10)):
        halves = rs.halvings(wrong[order], repeats, run.rng)
        odds = rs.held_out_scores(regressions(chain)["RHD"], wrong[order], halves)
        luck.append(rs.held_out_auc(odds, wrong, halves))
        odds = rs.held_out_scores(regressions(chain, order)["RHD + perplexity"], wrong, folds)
        noise.append(rs.held_out_auc(odds, wrong, folds))
    return {"luck": np.mean(luck), "noise": np.mean(noise)}


for name, found in detected.items():
    found |= controls(usable[name], found["folds"])
    print(f"{name}: shuffled labels {found['luck']:.3f}, perplexity with the terms of others {found['noise']:.3f}")

# %% [markdown]
# The four terms one by one. The paper's direction for a wrong chain: *lower* mean score, *higher* fluctuation, attention on bad steps, and correlation. Four looks, so each interval has 98.75%. An AUC *below* a half means: the other way round. Term 4 correlates two things, of which one is perplexity; so each term is computed once more with the scores of *other* chains at the same steps, and C4 judges what it gains over that and over a half. The control shuffles the labels.

# %%
from scipy.stats import binomtest, spearmanr

TERMS = ["mean score (lower)", "early fluctuation", "attention on bad", "spurious verification"]


def dealt(chain):
    """The chain's arrays with the scores of other chains, step by step."""
    R = chain["R"].copy()
    for column in R.T:
        there = np.flatnonzero(~np.isnan(column))
        column[there] = column[run.rng.permutation(there)]
    return chain | {"R": R}


def term_aucs(chain, counts, wrong):
    """AUC of each of the four terms, (4, 1001): point, then bootstrap draws."""
    table, whole = features_of(chain, np.ones(len(wrong), dtype=bool)) * [-1, 1, 1, 1], np.zeros((1, len(wrong)))
    return np.stack([rs.held_out_auc(term, wrong, whole, counts) for term in table.T])


def ends(draws):
    return np.column_stack([draws[:, 0], *np.quantile(draws[:, 1:], [0.00625, 0.99375], axis=1)])


# %% [markdown]
# Look for intervals above a half, and for terms that do as well with scores of other chains: these tell nothing by the score. (Verdicts were first taken from the AUC alone. At `real` term 4 passed, and passes with the scores of others too: it reads the perplexities.)


# %%
def gains(chain, counts, wrong, deals=1):
    """AUCs of the terms, with the scores of other chains, and what is gained over these and over a half."""
    own = term_aucs(chain, counts, wrong)
    others = np.mean([term_aucs(dealt(chain), counts, wrong) for _ in range(deals)], axis=0)
    return own, others, ends(own - np.maximum(others, 0.5))


terms, chance = {}, {}
for name, found in detected.items():
    wrong, counts = usable[name]["wrong"], found["counts"]
    own, others, terms[name] = gains(usable[name], counts, wrong, deals=10)
    shuffled = [gains(usable[name], counts, run.rng.permutation(wrong))[2] for _ in range(10)]
    chance[name] = np.median([table[:, 1].max() for table in shuffled])
    for term, (auc, low, high), other in zip(TERMS, ends(own), others[:, 0], strict=True):
        print(f"{name}: {term:22} {auc:.3f} [{low:.3f}, {high:.3f}], with scores of other chains {other:.3f}")
    R, ppl = (usable[name][what][~np.isnan(usable[name]["R"])] for what in ("R", "ppl"))
    print(f"{name}: rank correlation of score and perplexity over all steps {spearmanr(R, ppl).statistic:.2f}")

# %% [markdown]
# **Led astray?** Chains with an aside, up to and with their first wrong step. Is that step shallower than right ones *at the same place*? Labels are permuted within a place. Look at the sign of the difference.


# %%
def astray(chain, shuffle=False):
    """Right minus wrong mean R at equal places, and (as extreme, draws) of 2000 permutations."""
    right, R = chain["right"][:, : chain["R"].shape[1]], chain["R"]
    before = np.column_stack([np.ones(len(right), dtype=bool), np.logical_and.accumulate(right, 1)[:, :-1]])
    total, count, drawn = 0.0, 0, np.zeros(2000)
    for k in range(R.shape[1]):
        here = chain["aside"] & before[:, k] & ~np.isnan(R[:, k])
        bad = run.rng.permutation(~right[here, k]) if shuffle else ~right[here, k]
        if 0 < bad.sum() < bad.size:
            deviation = R[here, k] - R[here, k].mean()
            scale = bad.size / (~bad).sum()  # from "below the mean of all" to "below the right ones"
            total += deviation[bad].sum() * scale
            count += bad.sum()
            drawn += run.rng.permuted(np.tile(bad, (2000, 1)), axis=1) @ deviation * scale
    return -total / max(count, 1), count, int((drawn <= total).sum())


# %% [markdown]
# Tasks with ten first wrong steps at least are tested.

# %%
strayed = {name: found for name, chain in chains.items() if (found := astray(chain))[1] >= 10}
by_luck = {name: np.median([astray(chains[name], shuffle=True)[2] for _ in range(20)]) for name in strayed}
for name, (lower, count, extreme) in strayed.items():
    print(f"{name}: {count} first wrong steps, lower by {lower:.4f} nats, p = {(extreme + 1) / 2001:.4f}")

# %% [markdown]
# **Training by reward.** The decoder trained here is the policy; 1 is paid for the right last entity of a prompt of common and rare facts. Arms: GRPO; GRPO-R with $\gamma=1$ and with less; and the score *added*. All use step-level advantages, so that only the reward differs. $\alpha$ sets the mean bounded score.
#
# We did not find the paper's sizes. We planned 32 prompts a set of samples and 40 updates; 16 and 28 fit into a minute. Two repairs. Arms with 8 prompts did not learn at this rate, and lost accuracy at three times the rate. And a decoder trained for 300 steps, as planned, knew 85% of the answers: no arm gained more than a point. With 240 there is something to learn. The verdicts on detection are the same with 200, 300 and 450 steps (grid `training`).

# %%
show_source(rs.train_grpo)

# %% [markdown]
# An arm: the policy, and its accuracy and mean score half-way and at the end.

# %%
import copy

ARMS = {"GRPO": ("outcome", 1.0), "GRPO-R, γ = 1": ("potential", 1.0)}
ARMS |= {f"GRPO-R, γ = {gamma:g}": ("potential", gamma), "score added": ("added", 1.0)}
times = sorted({*np.linspace(0, grpo_updates, 3).round().astype(int).tolist()} - {0})


class Arm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = copy.deepcopy(network)
        self.register_buffer("curve", torch.zeros(len(times), 2))


# %% [markdown]
# It is measured on 1024 questions at temperature 1, all arms with the same random numbers.


# %%
def sample(policy, prompts, source):
    """Prompts with chains, their spans, and the scores of the steps."""
    rows = respond(policy, prompts, torch.ones_like(prompts, dtype=torch.bool), 3 * hops, source)
    begin = prompts.shape[1] + 3 * torch.arange(hops)
    spans = torch.stack([begin, begin + 3], 1).expand(len(rows), -1, -1)
    return rows, spans, rs.reasoning_score(policy, rows, spans, late_layers)


def measure(policy):
    prompts, truth = questions(1024, "seen", run.torch_generator())
    rows, _, scores = sample(policy, prompts, run.torch_generator())
    return torch.tensor([(rows[:, -2] == truth[:, -2]).float().mean(), scores.mean()]), scores


# %% [markdown]
# Before training; $\tau$ and $\alpha$ come from here and stay.

# %%
if not model:
    base, base_scores = measure(network)
    tau = base_scores.quantile(tau_quantile).item()
    alpha = mean_potential / rs.clipped_score(base_scores, 1.0, tau).mean().item()
    print(f"before: accuracy {base[0]:.3f}, mean R {base[1]:.4f} nats; tau {tau:.3f}, alpha {alpha:.2f}")

# %% [markdown]
# A group that is all wrong has no advantage and teaches nothing. In one that is all right the last step stands out from the steps before it, so later steps are encouraged: step-level advantages have no baseline by step.


# %%
def train_arm(form, discount, number):
    def roll_out(policy, source, size):
        prompts, truth = (rows.repeat_interleave(group_size, 0) for rows in questions(size, "seen", source))
        rows, spans, scores = sample(policy, prompts, source)
        outcome = rows[:, -2] == truth[:, -2]
        paid = rs.step_rewards(outcome, scores, form, alpha=alpha, tau=tau, gamma=discount)
        return rs.Rollouts(rows, spans, paid.unflatten(0, (size, group_size)))

    def fit(arm):
        def note(step, _):
            if step + 1 in times:
                arm.curve[times.index(step + 1)] = measure(arm.policy)[0]

        plan = Plan(grpo_updates, grpo_rate, grpo_prompts, weight_decay=0.0, final_fraction=1.0)
        source = torch.Generator().manual_seed(number)
        rs.train_grpo(
            arm.policy, network, lambda *draw: roll_out(arm.policy, *draw), plan, generator=source, after_step=note
        )

    told = run.parameters.model_dump(exclude={"preset", "n_traces", "n_samples", "repeats", "n_mdps", "grpo_seeds"})
    return cached_model(told | {"kind": "reasoning_score arm", "version": 1, "arm": [form, discount, number]}, Arm, fit)


# %% [markdown]
# All arms, each from the same seeds. Look at the accuracies, and at how far two seeds of one arm differ.

# %%
numbers = [] if model else run.seeds(grpo_seeds)
trained = {name: [train_arm(*arm, n) for n in numbers] for name, arm in run.progress(ARMS.items(), "arms")}
for name, arms in trained.items():
    after = torch.stack([arm.curve[-1] for arm in arms]).numpy() if arms else np.zeros((0, 2))
    print(f"{name:14} accuracy {after[:, 0].round(3)}, mean R {after[:, 1].round(4)}")

# %% [markdown]
# ## Figures
#
# **Score by step.** Mean of $R^k$ with its 95% band. Compare wrong with right chains *at the same step*: look whether the wrong ones lie below.

# %%
figure, panels = plt.subplots(1, len(chains), figsize=(6 * len(chains) + 1, 4), squeeze=False)
for axes, (name, chain) in zip(panels[0], chains.items(), strict=True):
    for k, (label, rows) in enumerate({"right": ~chain["wrong"], "wrong": chain["wrong"]}.items()):
        for style, aside in (("-", False), ("--", True)):
            R = chain["R"][rows & (chain["aside"] == aside)]
            seen = (~np.isnan(R)).sum(0)
            step = np.flatnonzero(seen > 1)
            mean, band = np.nanmean(R[:, step], 0), 1.96 * np.nanstd(R[:, step], 0) / np.sqrt(seen[step])
            _ = axes.plot(step + 1, mean, f"C{k}{style}o", label=label + (", aside" if aside else ""))
            _ = axes.fill_between(step + 1, mean - band, mean + band, color=f"C{k}", alpha=0.15, lw=0)
    gap = np.nanmean(chain["R"][chain["wrong"]]) - np.nanmean(chain["R"][~chain["wrong"]])
    _ = axes.set(xlabel="step of the chain", ylabel="Reasoning Score (nats)", xticks=range(1, chain["R"].shape[1] + 1))
    _ = axes.set_title(f"{name}: wrong chains score {'higher' if gap > 0 else 'lower'} by {abs(gap):.3f} nats")
    _ = axes.legend(fontsize=8, handlelength=4)
run.figure("score", figure)

# %% [markdown]
# Wrong chains do not lie below: the curves cross, the bands overlap, and on the whole the wrong ones lie a little *above*. Where the model is unsure, its late layers still move the prediction. So the score tells little about one chain. With the preset `real`, SmolLM2's wrong chains about countries lie above at every step; its word problems show no order.
#
# **Detectors.** Held-out ROC curves, all halvings pooled. The further up on the left, the more wrong chains are caught at few false alarms.

# %%
figure, panels = plt.subplots(1, max(len(detected), 1), figsize=(6 * max(len(detected), 1), 4.5), squeeze=False)
for axes, (name, found) in zip(panels[0], detected.items(), strict=False):
    wrong = usable[name]["wrong"]
    for detector in ("RHD + perplexity", "mean perplexity", "entropy", "self-consistency", "EigenScore", "RHD"):
        score = np.atleast_2d(found["scores"][detector])
        labels = np.broadcast_to(wrong, score.shape).ravel()[np.argsort(-score.ravel(), kind="stable")]
        curve = [np.r_[0, part.cumsum() / part.sum()] for part in (~labels, labels)]
        _ = axes.plot(
            *curve, label=f"{detector}, {found['auc'][detector][0]:.2f}", lw=2.5 if "RHD" in detector else 1.2
        )
    _ = axes.plot([0, 1], [0, 1], color="0.6", lw=0.8, zorder=0)
    _ = axes.set(xlabel="right chains flagged (share)", ylabel="wrong chains caught (share)")
    better = "beats" if found["auc"]["RHD"][0] > found["auc"]["mean perplexity"][0] else "does not beat"
    _ = axes.set_title(f"{name}: RHD {better} perplexity")
    _ = axes.legend(fontsize=8, title="detector, AUC", loc="lower right")
run.figure("roc", figure)

# %% [markdown]
# On made-up facts perplexity catches most wrong chains. RHD is little better than guessing, and that only because the fit may turn the signs round; to perplexity it adds nothing. Self-consistency and entropy lie between. SmolLM2 on countries is kinder: there RHD is a fair detector, by term 4. But that is perplexity once more: with the scores of *other* chains the term does as well (C4a fails). Asked for its own verdict, SmolLM2 guesses.
#
# **One chain, all depths.** The divergence from the output at every depth, token by token. Look how much the last block does, and for which tokens.

# %%
name, chain = next(iter(chains.items()))
example = int(np.flatnonzero(chain["wrong"])[0]) if chain["wrong"].any() else 0
row, span = chain["rows"][example : example + 1], chain["spans"][example : example + 1]
depths = list(range(1, network.config.num_hidden_layers))
place = torch.arange(span[0, 0, 0], span.max())
heat = rs.token_signals(network, row, span, depths).divergence[:, 0, place]
figure, axes = plt.subplots(figsize=(10, 4))
image = axes.imshow(heat, vmin=0, vmax=np.log(2), cmap="viridis", origin="lower", aspect="auto")
_ = axes.set_yticks(range(len(depths))[:: max(1, len(depths) // 8)], depths[:: max(1, len(depths) // 8)])


def word(token):
    if tokenizer:
        return tokenizer.decode([token]).replace("\n", "⏎")
    return {END: ";"}.get(token, f"e{token}" if token < n_entities else f"r{token - n_entities}")


_ = axes.set_xticks(range(len(place)), [word(int(row[0, t])) for t in place], rotation=60)
for k in (span[0, :, 0][span[0, :, 0] > place[0]] - place[0]).tolist():
    _ = axes.axvline(k - 0.5, color="w", lw=1)
_ = axes.set(xlabel="token that is predicted (white lines: steps)", ylabel="depth of the lens (blocks passed)")
_ = axes.set_title(
    f"A wrong chain: mean divergence {heat[0].mean():.2f} nats at depth 1, {heat[-1].mean():.2f} before the last block"
)
_ = axes.grid(visible=False)
_ = figure.colorbar(image, label="divergence from the output (nats)")
run.figure("lens", figure)

# %% [markdown]
# In the decoder trained here relations and separators are settled by the second block; only the entity, the fact itself, is still open there. A step has one such token in three, so its mean dilutes what there is. SmolLM2's readings stay near $\ln2$ until far up: its early streams do not speak the language of the unembedding, and its score says how late they begin to.
#
# **Reward.** Left, accuracy by update: a thin line a seed, thick their mean. Right, the potential: it falls with the score and jumps back at $\tau$.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for k, (name, arms) in enumerate(trained.items()):
    if arms:
        curves = np.stack([np.r_[base[0], arm.curve[:, 0]] for arm in arms])
        _ = left.plot([0, *times], curves.T, color=f"C{k}", lw=0.8, alpha=0.6)
        _ = left.plot([0, *times], curves.mean(0), color=f"C{k}", lw=2.5, marker="o", label=name)
_ = left.margins(y=0.6)
_ = left.set(xlabel="policy update", ylabel="right answers (share)")
last = [arm.curve[-1, 0].item() for arms in trained.values() for arm in arms]
if last:
    _ = left.set_title(f"From {base[0]:.2f} to between {min(last):.2f} and {max(last):.2f} in {grpo_updates} updates")
    _ = left.legend(fontsize=8)
else:
    _ = left.set_title("A pretrained model is not trained here")
edge, slope = (0.5, 1.0) if model else (tau, alpha)
grid = torch.linspace(0, 1.6 * edge, 400)
_ = right.plot(grid, -rs.clipped_score(grid, slope, edge))
_ = right.axvline(edge, color="0.6", lw=0.8)
_ = right.set(
    xlabel="Reasoning Score (nats; grey line: τ)",
    ylabel="potential Φ",
    title=f"At τ the potential jumps by {slope * edge:.2f}",
)
run.figure("reward", figure)

# %% [markdown]
# All arms learn. Here GRPO leads, GRPO-R is less than a point behind, and the arm that adds the score comes last; an accuracy over 1024 questions has a standard error of 1.4 points, so two seeds give no order. Theory expects none between GRPO and $\gamma=1$: the sum of a step's own and later shaped rewards is the outcome minus $\Phi$ of the state *before* the step. That is a baseline, which no choice made in the step can change. Only $\gamma<1$ pays for depth, and only because GRPO adds rewards up without discount (second slip of C2).

# %% [markdown]
# ## Verdicts
#
# First the exact claims; C1 also holds the largest score that the model reached against its bound. Every rule was fixed before the first run but that of C4, which was made stricter after one.

# %%
run.claim(
    "C1", "The divergence lies in [0, ln 2], is symmetric, and 0 only for equal predictions: pairs and scores beyond",
    kind="exact", measured=bounds_broken + int(largest_score > np.log(2) + 1e-6), rule="== 0",
    paper="prints scores of 2.7 and 3.3, with a scale it does not state", mutation="a one-sided divergence",
)  # fmt: skip
run.claim(
    "C2", "Potential shaping keeps best policies, and lowers values by the potential: processes changed",
    kind="exact", measured=optimum_moved, rule="== 0", paper="cited", mutation="a potential after the end that is not 0",
)  # fmt: skip
_ = run.claim(
    "C3", "With gamma = 1 trajectory-level advantages do not move: largest change",
    kind="exact", measured=advantages_moved, rule="<= 1e-9", paper="not discussed",
    mutation="a first potential that the group does not share",
)  # fmt: skip

# %% [markdown]
# Then the claims on detection, for each task with enough chains of both kinds (a and b where there are two). At `smoke` nothing statistical is judged.

# %%
FEW = "fewer than thirty right or wrong chains to fit a detector, or ten first wrong steps to compare"


def judge(id, statement, name, values, rule, paper, reason):
    """A statistical claim of one task; values gives measured, interval, control."""
    enough = name in (strayed if id == "C7" else usable)
    measured, interval, control = values(name) if enough else (None, None, None)
    suffix = "" if len(chains) == 1 else "ab"[list(chains).index(name)]
    run.claim(
        id + suffix, statement + (f" ({name})" if suffix else ""), kind="statistical", measured=measured, rule=rule,
        paper=paper, interval=interval, control=control, reason=reason if enough else FEW,
    )  # fmt: skip


# %% [markdown]
# What each claim measures, in which interval, against which control.


# %%
def best_term(name):
    more, low, high = terms[name][terms[name][:, 1].argmax()]
    return more, (low, high), ("lower end of the best with shuffled labels, median of 10", chance[name])


def gain(name, detector, other, what, control):
    auc = detected[name]["auc"]
    draws = auc[detector] - auc[other]
    return draws[0], tuple(np.quantile(draws[1:], [0.025, 0.975])), (what, control - auc[other][0])


def rhd_gain(name):
    return gain(name, "RHD", "mean perplexity", "RHD fitted on shuffled labels, mean of 10", detected[name]["luck"])


def added_gain(name):
    what = "the four terms dealt to other chains, mean of 10"
    return gain(name, "RHD + perplexity", "perplexity, fitted", what, detected[name]["noise"])


def astray_p(name):
    p = binomtest(strayed[name][2] + 1, 2001)
    control = ("labels shuffled within a place, median of 20", (by_luck[name] + 1) / 2001)
    return p.statistic, tuple(p.proportion_ci()), control


# %% [markdown]
# The rules stand in the last but one column of the table.

# %%
for name in chains:
    judge("C4", "A term separates wrong chains by the score, in the paper's direction: AUC over chance and others' scores", name, best_term, "> 0",
          paper="CV 0.239 against 0.150, AttnScore 0.382 against 0.307",
          reason="no term gains: where the model is unsure late layers move more, not less")  # fmt: skip
    judge("C5", "RHD beats perplexity: gain in held-out AUC", name, rhd_gain, "> 0",
          paper="RHD 0.72 to 0.80, best baseline 0.70 to 0.77",
          reason="wrong steps are those the model is unsure of: perplexity says so directly, the score dimly")  # fmt: skip
    judge("C6", "RHD adds to perplexity: gain in held-out AUC", name, added_gain, "> 0", paper=None,
          reason="what the terms know of uncertainty, perplexity knows already: the gain cannot be told from 0")  # fmt: skip
    judge("C7", "Steps led astray by an aside are shallower than right ones at the same place: p", name, astray_p, "< 0.05",
          paper="2.671 against 3.267",
          reason="the steps led astray are not lower: hesitation raises the score, if it moves it")  # fmt: skip

# %% [markdown]
# Last the training, which is reported: with few seeds the accuracy at the end of one run is chance, and by C3 the arms with and without shaping by $\gamma=1$ could only differ in their noise. Look at the table.

# %%
reached = {name: np.array([arm.curve[-1, 0].item() for arm in arms]) for name, arms in trained.items()}
more = reached["GRPO-R, γ = 1"] - reached["GRPO"]
run.claim(
    "C8", "GRPO-R against GRPO: gain in accuracy, mean and range of the seeds", kind="descriptive", rule=None, measured=more.mean() if len(more) else None,
    interval=(more.min(), more.max()) if len(more) else None,
    paper="+0.01 to +0.06 on four test sets, one run each", reason="forty updates of a pretrained model take hours here",
)  # fmt: skip
run.table()

# %% [markdown]
# Verdicts as they stand in the record.

# %% tags=["nbval-check-output"]
run.finish()

# %% [markdown]
# ## Limits, full scale, exercises
#
# **What this run does not show.** A decoder of four blocks has hardly any late layers: two depths are compared with a third. Its wrong steps are mostly facts that it never saw; it is unsure of them, which is perplexity's home ground. The paper's models reason over long chains, and err with confidence. Not run: the paper's sets (ReTruthQA, GSM-NoOp, MATH), a language model as critic, process reward models, and the generalisation bound.

# %% [markdown]
# **The pretrained model.** The preset `real` reads SmolLM2-135M-Instruct, offline: eight minutes on two cores. Its chains have three steps, or two: then the correlation of term 4 can only be $\pm1$. It solves a sixth of the word problems, so intervals are wide there. Its mean score points the other way: wrong chains about countries score *higher* (AUC 0.38 for lower).
#
# **Full scale.** `preset="full"` reads the paper's DeepSeek-R1-Distill-Qwen-1.5B on the same two tasks: a download of 3.6 GB, and hours on the processor. We have not run it. Training at that size needs a GPU and step-level rewards.

# %% [markdown]
# **Exercise 1.** C3 needs a potential of the prompt that the group shares. Take the first step's score in its place, and show that trajectory-level advantages move.
#
# <details><summary>Solution</summary>
#
# ```python
# own = -drawn  # every state's potential is its own step's score, the prompt's too
# shaped = rs.potential_shaped_rewards(rs.step_rewards(outcome, drawn, "outcome", alpha=1, tau=1), own, 1.0)
# difference = rs.grpo_advantages(shaped) - rs.grpo_advantages(without)
# assert difference.abs().max() > 0.01
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** A score that is *added* pays for every further step. Append a step to the example by hand, and show that the sum of rewards rises when scores are added, and stays with a potential.
#
# <details><summary>Solution</summary>
#
# ```python
# longer = torch.cat([by_hand, torch.tensor([0.25])])
# sums = {
#     form: [rs.step_rewards(torch.tensor(1.0), scores, form, alpha=1.0, tau=1.0).sum().item() for scores in (by_hand, longer)]
#     for form in ("added", "potential")
# }
# assert sums["added"][1] > sums["added"][0] + 0.2
# assert abs(sums["potential"][1] - sums["potential"][0]) < 1e-6
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** How much does the score depend on which layers count as late? Score the first 40 chains with the depth before the last alone, and compare with all depths.
#
# <details><summary>Solution</summary>
#
# ```python
# first = next(iter(chains.values()))
# rows, spans = first["rows"][:40], first["spans"][:40]
# only_last = rs.reasoning_score(network, rows, spans, depths[-1:]).numpy()
# everything = rs.reasoning_score(network, rows, spans, depths).numpy()
# there = ~np.isnan(only_last)
# assert (only_last[there] <= np.log(2) + 1e-6).all()
# assert everything[there].mean() > only_last[there].mean()  # the further from the end, the further from the output
# print("correlation", np.corrcoef(only_last[there], everything[there])[0, 1].round(2))
# ```
#
# </details>
#
# **Next.** [The circuit of chain of thought](cot_circuit.ipynb): where in a network the middle step of a chain is found, and who reads it.
