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
# # Why SGD does not walk along the valleys that join its minima
#
# **Paper:** *Entropic Confinement and Mode Connectivity in Overparameterized Neural Networks*, Luca Di Carlo, Chase Goddard, David J. Schwab, ICLR 2026, [arXiv 2512.06297](https://arxiv.org/abs/2512.06297).
# **Code:** none published so far. **Topics:** loss landscapes, SGD noise, mode connectivity, curvature.
# **Cost of the default run:** under a minute on one quiet thread, 2 GiB, no downloads.
#
# Whose problem this is:
#
# 1. You average or merge networks, and wonder why two runs never drift together by themselves.
# 2. You build ensembles along low-loss paths and want to know which points on them are stable.
# 3. You tune learning rate over batch size and want to know what it pushes on.
# 4. You measure flatness, and suspect that you measure the loss.
# 5. You teach statistical physics, and want a force without a potential.

# %% [markdown]
# ## Claims
#
# - **C1** A fast direction of stiffness $g(y)$ adds $\frac T2\ln g(y)$ to the potential of a slow coordinate: half of what the paper's toy model says.
# - **C2** In the smallest network, $uv$, noise alone moves the weights to the flat end of a level valley, by an exact law.
# - **C3** Two minima are joined by a path whose loss is nowhere much above theirs.
# - **C4** The curvature rises inside that path, by every measure.
# - **C5** SGD noise pushes networks from inside the path to its ends.
# - **C6** The push grows with the temperature $\eta/B$.
# - **C7** When two copies part later and later in training, the loss barrier disappears before the curvature barrier.
# - **C8** The rise is not a side effect of the loss.
#
# Clean labels are the control: there, the effect is weak.

# %% [markdown]
# The idea. SGD jitters across a valley. Where the walls are steep, the jitter costs loss, and on average the network slides along the valley to where they are wide, although the valley's floor is level. Physicists call this an *entropic* force. So a path without an energy barrier can have an entropic one, and a network on it is confined to the end where it was born.

# %% [markdown]
# ## Parameters
#
# Everything that a reader may change. `preset="smoke"` takes seconds; `preset="real"` replaces the small network by low-rank updates of a pretrained language model, and leaves out what that makes too dear (C6, C7, the clean control).

# %% tags=["parameters"]
preset: str = "small"  # named parameter set of presets/entropic_barriers.toml
seed: int = 0  # seed of data, training and noise
dataset: str = "digits"  # images (digits, mnist), or sentences (sst2) for a language model
model: str = "mlp"  # mlp, or smollm2-135m-instruct with adapters
n_train: int = 600  # training examples
label_noise: float = 0.2  # share of the labels that are drawn anew
hidden: int = 24  # neurons of a hidden layer
depth: int = 2  # hidden layers
rank: int = 4  # rank of the adapters
minima_steps: int = 5000  # SGD steps to a minimum
lr: float = 0.05  # first learning rate of that training
optimiser: str = "sgd"  # optimiser of that training: sgd (momentum 0.9) or adam
lr_drop: float = 5.0  # the rate is divided by it at 30, 60, 80 and 90 % of the steps
batch_size: int = 32  # batch size of that training
weight_decay: float = 5e-4  # weight decay, of training and of everything after
pivots: int = 13  # pivots of the finished path
neb_steps: list[int] = [400, 400, 600, 500]  # steps of the band's cycles
neb_rate: list[float] = [0.05, 0.05, 0.05, 0.01]  # their learning rates
neb_batch: int = 0  # batch size of the band; 0: full batch
drift_eta: list[float] = [0.05, 0.1]  # learning rates of the drift test
drift_batch: list[int] = [4, 8, 32]  # its batch sizes, the smallest first
drift_steps: int = 30  # its SGD steps
replicas: int = 256  # its replicas a pivot
project_every: int = 15  # SGD steps between two projections onto the path
project_steps: int = 600  # steps of projected SGD; 0 leaves it out
branch_total: int = 5000  # steps of the branching-time training; 0 leaves it out
branch_steps: list[int] = [0, 50, 150, 400, 800, 1200]  # when copies part
branch_seeds: int = 5  # trunks of the branching-time experiment
walkers: int = 4000  # walkers of the toy model

# %% [markdown]
# ## Setup
#
# Nothing below holds a single network: parameters are vectors, and pivots, replicas, seeds and probes are leading axes of one tensor.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.func import hessian

import lib.methods.entropic_barriers as eb
from lib.bench import bootstrap_interval, show_source, start

run = start("entropic_barriers", globals())

# %% [markdown]
# ## Symbols and a first example
#
# | maths | code | meaning |
# |---|---|---|
# | $\theta_i$ | `path[i]` | pivot of the path, a network of $P$ parameters |
# | $s\in[0,1]$ | `position` | share of the path's length |
# | $\hat\tau_i$ | `path_tangents` | unit tangent of the path at a pivot |
# | $\eta,\ B$ | `rate`, `batch_size` | learning rate, batch size; $T\propto\eta/B$ |
# | $H$ | | Hessian of the mean loss |
# | $\lambda_{\max}$ | `hessian_top_eigenvalue` | its largest eigenvalue |
# | $\mathrm{tr}\,H$ | `hutchinson_trace`, `fisher_trace` | its trace |
# | $D_i$ | `Drift.drift` | displacement along $\hat\tau_i$ that noise causes |
# | $g(y)$ | `stiffness` | curvature of the toy valley at $y$ |

# %% [markdown]
# By hand. The smallest network is $f=uv$ with one target, 1, and loss $\frac12(uv-1)^2$. Every point of $uv=1$ is a minimum; the Hessian's trace there is $u^2+v^2$, least at $u=v$.
#
# One SGD step with residual $r$ is $u'=u-\eta rv,\ v'=v-\eta ru$, so
#
# $$u'^2-v'^2=(u^2-v^2)(1-\eta^2r^2).$$
#
# Gradient flow ($\eta\to0$ at fixed time) conserves $u^2-v^2$. Noise makes $r$ random with mean square $\sigma^2$, and the imbalance decays like $e^{-\eta\sigma^2t}$ in time $t$ = steps $\times\,\eta$: a drift towards the flat point, with no slope to explain it. Look for a rate proportional to $\eta$, the temperature.

# %%
duration, rates = 10, [0.1, 0.03, 0.01, 0.003, 0.001]
noise = torch.Generator().manual_seed(1)
begin, decay = torch.tensor([2.0, 0.5]), {}
for rate in rates:
    residual_noise = 0.5 * torch.randn(round(duration / rate), generator=noise, dtype=torch.float64)
    points, _ = eb.minimal_sgd(begin, rate, residual_noise)
    imbalance = points[:, 0] ** 2 - points[:, 1] ** 2
    decay[rate] = float(1 - imbalance[-1] / imbalance[0])
    print(f"eta {rate:<6} imbalance lost by time {duration}: {decay[rate]:.4f}, expected {-np.expm1(-rate * 2.5):.4f}")

# %% [markdown]
# ## The core step
#
# First, the path. A band of pivots is stretched between two minima. Each step moves the pivots downhill, but not along the path, and then spaces them equally. Look for the order: weight decay is part of the gradient *before* the projection, and the springs are infinitely stiff.

# %%
show_source(eb.band_step)

# %% [markdown]
# Second, the measurement. Many replicas start at each pivot and run a few steps of SGD. What full-batch descent does from the same point is subtracted: on a path that is not perfectly relaxed, it is ten times larger.
#
# Also subtracted is the random walk that the same batches would have made with all gradients frozen at the pivot. It is zero on average and does not change the estimate, but it is most of its variance. And it serves as control: noise without curvature.

# %%
show_source(eb.entropic_drift)

# %% [markdown]
# ## Exact checks
#
# The toy model: $V(x,y)=\frac12g(y)|x|^2$ with $k$ fast directions $x$. Boltzmann's law gives $p(y)\propto\int e^{-V/T}dx\propto g(y)^{-k/2}$, that is $V_{\rm eff}=\frac k2T\ln g$. We integrate $x$ out on a grid, and fit the prefactor.


# %% tags=["nbval-check-output"]
def stiffness(y):
    return 1 + 10 * torch.exp(-(y**2) / 0.08)


temperature, k_values = 0.1, (1, 2)
y_grid, x_grid = torch.linspace(-1, 1, 1001).double(), torch.linspace(-6, 6, 4001).double()
weight = torch.exp(-0.5 * stiffness(y_grid)[:, None] * x_grid**2 / temperature).sum(1)
logs = stiffness(y_grid).log().numpy()
fitted = [np.polyfit(logs, -(weight**k).log().numpy(), 1)[0] for k in k_values]
boltzmann_error = max(abs(alpha - k / 2) for alpha, k in zip(fitted, k_values, strict=True))
print("one fast direction, prefactor is half of T ln g:", bool(abs(fitted[0] - 1 / 2) < 1e-6))
print("two fast directions, prefactor is T ln g:", bool(abs(fitted[1] - 1) < 1e-6))

# %% [markdown]
# So the statement $V_{\rm eff}=T\ln g$ is right for *two* fast directions, or if $T$ is defined with twice our noise ($dx=-\partial_xV\,dt+\sqrt{2T}\,dW$ here). What does not depend on any convention is the density, $g^{-1/2}$ for one direction; and for many directions the sum $\frac T2\sum_k\ln g_k=\frac T2\ln\det H_\perp$. The sign, and all conclusions, remain.
#
# Next, the identity of the smallest network, over 2,000 noisy steps.

# %% tags=["nbval-check-output"]
residual_noise = 0.5 * torch.randn(2000, generator=noise, dtype=torch.float64)
points, residuals = eb.minimal_sgd(begin, 0.05, residual_noise)
imbalance = points[:, 0] ** 2 - points[:, 1] ** 2
product = imbalance[0] * torch.cumprod(1 - (0.05 * residuals) ** 2, 0)
identity_error = float((imbalance[1:] - product).abs().max() / imbalance[0])
print("u² - v² follows the product formula:", identity_error < 1e-10)
print("the smallest step keeps it:", decay[rates[-1]] < 0.01, "and the largest does not:", decay[rates[0]] > 0.1)

# %% [markdown]
# Curvature, against the explicit Hessian of a tiny network. Look for the last two lines. The Fisher matrix with labels drawn *from the model* has the Hessian's trace exactly, since a ReLU network is piecewise linear in each single weight. With the data's labels, the *empirical* Fisher, it is another quantity.

# %% tags=["nbval-check-output"]
tiny_noise = torch.Generator().manual_seed(3)
tiny_x = torch.randn(9, 3, generator=tiny_noise, dtype=torch.float64)
tiny = eb.Objective(eb.MLP((3, 5, 3), tiny_x), torch.randint(3, (9,), generator=tiny_noise))
tiny_theta = tiny.logits.draw(1, tiny_noise)
H = hessian(tiny)(tiny_theta[0])
top, _ = eb.hessian_top_eigenvalue(tiny, tiny_theta, 400, tiny_noise)
probes = eb.hutchinson_trace(tiny, tiny_theta, 4000, tiny_noise)
close = {
    "power iteration finds the top eigenvalue": abs(top / torch.linalg.eigvalsh(H)[-1] - 1) < 1e-3,
    "Hutchinson's probes find the trace": abs(probes / H.trace() - 1) < 0.1,
    "the model's Fisher trace is the Hessian's": abs(eb.fisher_trace(tiny, tiny_theta).mean() / H.trace() - 1) < 1e-6,
    "so is the empirical one": abs(eb.fisher_trace(tiny, tiny_theta, "data").mean() / H.trace() - 1) < 0.05,
}
for name, passed in close.items():
    print(f"{name}: {bool(passed)}")

# %% [markdown]
# ## Experiment
#
# **The toy, as it moves.** Thousands of Langevin walkers in the valley, between reflecting walls. Nothing tells them about $g^{-1/2}$. The prefactor is fitted by maximum likelihood in ten groups of walkers.

# %%
draws = [torch.Generator().manual_seed(s) for s in run.seeds(7)]
toy_steps = 5000 if run.preset != "smoke" else 400
toy = {
    k: eb.langevin_marginal(stiffness, temperature, generator=draws[0], fast=k, walkers=walkers, steps=toy_steps)
    for k in k_values
}
prefactor = {k: eb.entropic_prefactor(samples, stiffness) for k, samples in toy.items()}
grouped = {k: [eb.entropic_prefactor(c, stiffness) for c in samples.chunk(10, 1)] for k, samples in toy.items()}
toy_error = {k: np.std(values, ddof=1) / np.sqrt(10) for k, values in grouped.items()}
for k in k_values:
    print(f"{k} fast: prefactor {prefactor[k]:.3f} +- {toy_error[k]:.3f}, law {k / 2}")

# %% [markdown]
# **Data and minima.** Small images with a share of *wrong* labels, and the same images with right ones. Wrong labels force the network to bend sharply around single examples; that is where curvature comes from. All minima train side by side.

# %%
is_mlp = model == "mlp"
if is_mlp:
    network, noisy, clean = eb.image_problem(dataset, n_train, [hidden] * depth, label_noise, draws[1])
    cases = ["noisy", "clean"]
else:
    network, noisy, clean = eb.sentiment_problem(model, n_train, rank, label_noise, draws[1])
    cases = ["noisy"]
labels = torch.stack([noisy, clean])[: len(cases), None]  # (case, 1, N)

# %% [markdown]
# An objective maps parameter vectors to losses. `joint` holds both label sets, so that all minima train as one tensor of shape (case, end, parameters).

# %%
joint, single = eb.Objective(network, labels), [eb.Objective(network, row[0]) for row in labels]
initial = network.draw(2 * len(cases), draws[1]).unflatten(0, (-1, 2))
minima = eb.descend(
    joint,
    initial,
    eb.falling_rates(lr, minima_steps, lr_drop),
    eb.random_batches(n_train, batch_size, initial.shape[:2], draws[1]),
    momentum=0.9 if optimiser == "sgd" else 0.0,
    weight_decay=weight_decay,
    optimiser=optimiser,
)  # (case, end, P)

# %% [markdown]
# How deep are the minima, and how far apart?

# %%
print(f"{network.size} parameters, {int((noisy != clean).sum())} of {n_train} labels wrong")
for name, values, ends in zip(cases, joint(minima), minima, strict=True):
    print(f"{name}: losses {values[0]:.4f} and {values[1]:.4f}, distance {float((ends[0] - ends[1]).norm()):.1f}")

# %% [markdown]
# **The path.** Five pivots first; more go where the loss rises most above the chord. The gradient is that of all examples: a band with mini-batches is itself noisy, and would look for flat regions on its own. A band with twice the rate (`[grid.band]`) relaxes further: the path gets flatter, and its hump lower, though it stays. Look for the straight line's loss against the path's.

# %%
counts, cycles = [min(5, pivots)], []
for steps, rate in zip(neb_steps, neb_rate, strict=True):
    added = min(pivots - counts[-1], counts[-1] - 1) if cycles else 0
    cycles.append(eb.Cycle(steps, rate, added))
    counts.append(counts[-1] + added)


def band_loss(theta):
    index = torch.randint(n_train, (*theta.shape[:-1], neb_batch), generator=draws[2]) if neb_batch else None
    return joint(theta, index)


# %% [markdown]
# The bands of all cases relax together, and are then looked at three times: at the pivots, between them, and along the straight line instead.

# %%
path = eb.nudged_elastic_band(
    band_loss, minima[:, 0], minima[:, 1], schedule=cycles, n_pivots=counts[0], weight_decay=weight_decay
)
K, middle = path.shape[1], path.shape[1] // 2
position, dense = torch.linspace(0, 1, K), torch.linspace(0, 1, 2 * K - 1 if not is_mlp else 8 * K - 7)
with torch.no_grad():
    path_loss, dense_loss = joint.losses(path), joint.losses(eb.path_points(path, dense))  # (case, K, N)
    line_loss = joint.losses(eb.path_points(minima, position))

# %% [markdown]
# Look for the distance between the three numbers of a line.

# %%
for name, *values in zip(cases, path_loss, dense_loss, line_loss, strict=True):
    on_path, between, straight = (float(v.mean(-1).max()) for v in values)
    print(f"{name}: {K} pivots, highest loss {on_path:.4f}, between pivots {between:.4f}, straight line {straight:.3f}")

# %% [markdown]
# **Curvature along it**, by several measures, each as a mean over the examples so that it can be resampled. The noisy path has its exact trace; elsewhere random probes, the same for all points, are enough. The top eigenvalue's examples are its quadratic form in the top eigenvector.


# %%
def trace(objective, theta):
    """Trace of the Hessian (Gauss-Newton matrix for a language model), one number an example."""
    if not is_mlp:
        return eb.fisher_trace(objective, theta)
    return eb.hutchinson_trace(objective.losses, theta, 32, torch.Generator().manual_seed(seed))


# %% [markdown]
# All measures at all pivots. Only the noisy path gets the exact trace.

# %%
profile = eb.fisher_trace(single[0], path[0])  # (K, N), exact
empirical = eb.fisher_trace(joint, path, "data")
probed = trace(joint, path) if is_mlp else profile[None]
line_trace = trace(single[0], eb.path_points(minima[0], position)).mean(-1)
if is_mlp:
    top, direction = eb.hessian_top_eigenvalue(joint, path, 60, draws[3])
    top_forms = eb.second_derivatives(joint.losses, path, direction)
measures = {"trace": probed, "empirical Fisher": empirical} | ({"top eigenvalue": top_forms} if is_mlp else {})


# %% [markdown]
# The number that C4 judges: the middle over the mean of the ends.


# %%
def rise(mean, axis=0):
    """Value in the middle over the mean of the ends; rows are both ends and the middle."""
    first, mid, last = np.moveaxis(np.asarray(mean), axis, 0)
    return mid / ((first + last) / 2)


three = [0, middle, K - 1]
for name, values in measures.items():
    ratios = [f"{case} {rise(v[three].mean(-1)):.2f}" for case, v in zip(cases, values, strict=True)]
    print(f"{name:<17} middle over ends: {', '.join(ratios)}")
print(f"exact trace, noisy: {rise(profile[three].mean(-1)):.2f}")

# %% [markdown]
# **The spectrum.** Singular values of the matrix of scores (examples $\times$ parameters) give the eigenvalues of the empirical Fisher matrix. Does one direction sharpen, or all of them?

# %%
spectrum = eb.fisher_spectrum(single[0], path[0][three], n_train)
ratio = spectrum[1] / spectrum[[0, 2]].mean(0)
for low, high in ((0, 10), (10, 30), (30, 60)):
    print(f"eigenvalues {low + 1} to {high}: middle over ends {ratio[low:high].mean():.2f}")

# %% [markdown]
# **Entropic drift** at every inner pivot, for each temperature. A setting is *too hot* if the replicas' loss more than doubles on the way: that is escape, not response. C5 rests on the first learning rate with the smallest batch, and only if that is not too hot.

# %%
drifts = {
    (eta, b): eb.entropic_drift(
        single[0],
        path[0],
        rate=eta,
        batch_size=b,
        steps=drift_steps,
        replicas=replicas,
        generator=draws[4],
        weight_decay=weight_decay,
    )
    for eta in drift_eta
    for b in drift_batch
}

# %% [markdown]
# Which way should a pivot drift? Away from the summit of the trace; the summit itself has no side.

# %%
summit = int(profile.mean(-1)[1:-1].argmax()) + 1
side = np.sign(np.arange(1, K - 1) - summit)  # where the nearer flat end lies
inner = position[1:-1].numpy()
print(f"trace is highest at s = {position[summit]:.2f}; right/wrong: significant at two standard errors")
for (eta, b), d in drifts.items():
    z = (side * (d.drift / d.stderr).numpy())[side != 0]
    size, growth = float((torch.tensor(side) * d.drift).mean()), float(d.loss_after.mean() / d.loss_before.mean())
    print(
        f"eta {eta:<5} B {b:<3} outward drift {size:9.2e}  right {(z > 2).sum()}, wrong {(z < -2).sum()}; loss x{growth:.1f}"
    )

# %% [markdown]
# **Projected SGD**, the paper's own test: every few steps the network is put back onto the path. Networks of this size hardly move, and equally little for all batch sizes: what moves them is the residual slope of the loss, in whose presence the entropic part can't be seen without the subtraction above. Momentum and Adam move farther.

# %%
starts = torch.linspace(0.1, 0.9, 5).repeat(2)
kinds = [("sgd", 0.01, 16), ("sgd", 0.02, 16), ("sgd", 0.02, 256), ("sgd", 0.05, 16), ("sgd", 0.05, 4)]
kinds += [("nesterov", 0.05, 16), ("adam", 0.001, 16), ("sgd", 0.05, 0)]

# %% [markdown]
# Two networks a start and setting, five starts, all settings on the same path.

# %%
travel = {}
for kind, eta, b in kinds if project_steps else []:
    options = {"momentum": 0.9 if kind == "nesterov" else 0.0, "weight_decay": weight_decay, "optimiser": kind}
    options |= {"rate": eta, "batch_size": b, "steps": project_steps, "every": project_every}
    begun = starts if b else starts[:5]  # full-batch descent has no noise to average
    s = eb.projected_sgd(single[0], path[0], begun, generator=draws[5], **options)
    travel[kind, eta, b] = s.unflatten(1, (-1, 5)).mean(1)
    moved = ", ".join(f"{v:+.4f}" for v in travel[kind, eta, b][-1] - starts[:5])
    print(f"{kind:<9} eta {eta:<6} B {b or 'all':<4} s moved by {moved}")

# %% [markdown]
# **Branching time.** Trunks train on noisy labels; at step $k$ two copies go on with different batches, to the end. On the straight line between them we measure two barriers, of the loss and of the trace, above the chord. All copies of all trunks are one batch: before they part, copies draw the same examples. The training has to be long enough to reach a minimum: stopped at 1,500 steps, where the loss is still ten times higher, most of these pairs have no curvature barrier at all.

# %%
loss_barrier = trace_barrier = None
if branch_total:
    trunks = network.draw(branch_seeds, draws[6])[:, None, None].expand(-1, len(branch_steps), 2, -1)
    copies = eb.descend(
        single[0],
        trunks,
        eb.falling_rates(lr, branch_total, lr_drop),
        eb.branching_batches(n_train, batch_size, branch_steps, branch_seeds, draws[6]),
        momentum=0.9,
        weight_decay=weight_decay,
    )  # (seed, k, copy, P)
    pair = copies[:, :, 0], copies[:, :, 1]
    loss_barrier = eb.linear_barrier(single[0], *pair, 5).numpy()
    trace_barrier = eb.linear_barrier(lambda theta: trace(single[0], theta).mean(-1), *pair, 5).numpy()
    print("share of the barrier at k = 0, mean over seeds; k =", branch_steps)
    for name, values in (("loss", loss_barrier), ("trace", trace_barrier)):
        print(f"{name:<6}", np.round((values / values[:, :1]).mean(0), 3))

# %% [markdown]
# ## Figures
#
# **The toy.** Do the walkers follow $g^{-1/2}$ (solid), or $g^{-1}$ (dashed), which $T\ln g$ would mean?

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
for axes, k in ((left, 1), (right, 2)):
    _ = axes.hist(toy[k].flatten().numpy(), 60, density=True, color="0.8", label="walkers")
    for power, style in ((0.5, "-"), (1.0, "--")):
        density = stiffness(y_grid) ** -power
        density = density / torch.trapezoid(density, y_grid)
        _ = axes.plot(y_grid, density, style, label=f"proportional to g^-{power:g}")
    _ = axes.set(
        xlabel="slow coordinate y", ylabel="density", title=f"{k} fast: prefactor {prefactor[k]:.2f} of T ln g"
    )
    _ = axes.legend(loc="upper center", fontsize=8)
run.figure("toy", fig)

# %% [markdown]
# Seen: one fast direction gives half of $T\ln g$, two give the whole. The walkers avoid the steep place although its floor is as deep as any other.

# %% [markdown]
# **The path.** Left: is the loss level along the path, against the straight line? Right: does the curvature have a hump where the loss has none, and is it gone with clean labels?

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
_ = left.semilogy(position, line_loss[0].mean(-1), "0.6", ls=":", label="straight line, noisy labels")
for c, name in enumerate(cases):
    _ = left.semilogy(dense, dense_loss[c].mean(-1), color=f"C{c}", lw=0.8)
    _ = left.semilogy(position, path_loss[c].mean(-1), "o", color=f"C{c}", label=f"path, {name} labels")
_ = left.set(xlabel="position s on the path", ylabel="training loss (nats)")
_ = left.set_title(
    f"Path loss at most {path_loss[0].mean(-1).max() / path_loss[0].mean(-1)[[0, -1]].max():.2f} x the ends'"
)
for (name, values), marker in zip(measures.items(), "os^", strict=False):
    for c, case in enumerate(cases):
        curve = values[c].mean(-1)
        style = {"ls": "-" if case == "noisy" else "--", "color": f"C{c}", "marker": marker, "ms": 4}
        _ = right.plot(position, curve / curve[[0, -1]].mean(), label=f"{name}, {case}", **style)
_ = right.set(xlabel="position s on the path", ylabel="curvature / mean of the ends")
_ = right.set_title(
    f"Trace rises by {rise(profile[three].mean(-1)):.2f}; straight line by {float(line_trace.max() / line_trace[[0, -1]].mean()):.1f}"
)
_ = right.axhline(1, color="0.6", lw=0.8)
_ = right.set_ylim(top=1.3 * right.get_ylim()[1])
_ = left.legend(fontsize=8)
_ = right.legend(fontsize=7, ncols=2, loc="upper center")
run.figure("path", fig)

# %% [markdown]
# Seen: pivots at most a tenth above the higher end, where the straight line is a hundred times above; between pivots the straight pieces cut corners. Under noisy labels all measures rise inside, much more than the loss does. Under clean ones the loss is level and they still rise, but by less, and from a level several times lower.

# %% [markdown]
# **Drift.** Positive is to the right. Left of the trace's summit the arrows should be negative, right of it positive: towards the ends. Grey: minus the slope of $\ln\mathrm{tr}H$, the direction that the theory predicts. Right: projected SGD, for the fastest settings.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
for b in drift_batch:
    d = drifts[drift_eta[0], b]
    _ = left.errorbar(inner, d.drift, 2 * d.stderr, marker="o", capsize=3, label=f"η = {drift_eta[0]}, B = {b}")
slope = -np.gradient(np.log(profile.mean(-1).numpy()), position.numpy())[1:-1]
scale = float(drifts[drift_eta[0], drift_batch[0]].drift.abs().max()) / np.abs(slope).max()
_ = left.bar(inner, slope * scale, width=0.5 / K, color="0.85", zorder=0, label="-d ln tr H / ds, scaled")
_ = left.axhline(0, color="0.4", lw=0.8)
_ = left.set(xlabel="position s on the path", ylabel="drift along the path (± 2 s.e.)")
outwards = int((side * drifts[drift_eta[0], drift_batch[0]].drift.numpy() > 0).sum())
_ = left.set_title(f"Noise drives {outwards} of {K - 2} pivots outwards")
for n, (key, s) in enumerate(list(travel.items())[-5:]):
    name = f"{key[0]}, η = {key[1]}, B = {key[2] or 'all'}"
    _ = right.plot(project_every * np.arange(len(s)), s - s[:1], color=f"C{n}", lw=1)
    _ = right.plot([], [], color=f"C{n}", label=name)
_ = right.set(xlabel="SGD steps", ylabel="change of s (five starts)", title="Projected SGD hardly moves at this size")
for axes in (left, right):
    _ = axes.legend(fontsize=8) if axes.get_legend_handles_labels()[0] else None
run.figure("drift", fig)

# %% [markdown]
# Seen: the drift changes sign near the middle, and shrinks with larger batches. It does not follow the slope of the log-trace pivot by pivot, and next to the left end it even points inwards: SGD's noise is far from white, and concentrates on the directions that wrong labels make steep.

# %% [markdown]
# **Branching time.** Which barrier reaches the five per cent line (dashed) first?

# %%
if branch_total:
    fig, axes = plt.subplots(figsize=(6, 3.8))
    for values, color, name in ((loss_barrier, "C0", "loss"), (trace_barrier, "C1", "trace of the Hessian")):
        share = np.maximum(values / values[:, :1], 1e-4)
        _ = axes.plot(branch_steps, share.T, color=color, lw=0.6, alpha=0.6)
        _ = axes.plot(branch_steps, share.mean(0), "o-", color=color, label=name)
    _ = axes.axhline(0.05, color="0.4", ls="--", lw=0.8)
    _ = axes.set(yscale="log", xlabel="step k at which the copies part", ylabel="barrier / barrier at k = 0")
    _ = axes.set_xscale("symlog", linthresh=50)
    _ = axes.set_xlim(0, None)
    _ = axes.set_title("The loss barrier falls before the curvature barrier")
    _ = axes.legend()
    run.figure("branching", fig)

# %% [markdown]
# Seen: both barriers fall with later branching, the loss barrier faster in each trunk. There is a window in which copies look connected by the loss, and are not by curvature. It is narrow against our grid of $k$: in some trunks both cross the line between the same two steps, which C7 counts against the claim.

# %% [markdown]
# ## Verdicts
#
# The toy first: its exact law.

# %%
text = "integrating x out: prefactor of T ln g differs from k/2 (k = 1, 2) by"
note = "the stiffness is left out of the weight"
_ = run.claim("C1a", text, kind="exact", rule="<= 1e-6", measured=boltzmann_error, paper="1 for k = 1", mutation=note)

# %% [markdown]
# The walkers. The control is the prefactor of the paper's text.

# %%
gap = {k: abs(prefactor[k] - k / 2) for k in k_values}
_ = run.claim(
    "C1b",
    "Langevin walkers: fitted prefactor differs from k/2 (k = 1, 2) by",
    kind="statistical",
    rule="<= 0.03",
    measured=max(gap.values()),
    interval=(0.0, max(gap[k] + 2 * toy_error[k] for k in k_values)),
    control=("prefactor 1 for k = 1", abs(prefactor[1] - 1)),
    paper="1 for k = 1",
    reason="too few walkers or steps",
)

# %% [markdown]
# The smallest network: its identity, and what is left of the drift when the step goes to zero.

# %%
text, note = "u² - v² against the product of 1 - η²r², relative error", "the sign of the square is turned"
_ = run.claim("C2a", text, kind="exact", rule="<= 1e-10", measured=identity_error, mutation=note)
text, note = f"imbalance lost by time {duration} at η = {rates[-1]}", "a hundred times larger step"
_ = run.claim("C2b", text, kind="exact", rule="<= 0.01", measured=decay[rates[-1]], mutation=note)

# %% [markdown]
# The others resample the training examples: 600 of them for the images. `over_items` gives the measured value and its interval.


# %%
def over_items(measure, values):
    """Measure (over axis 0) of the means of values (point, example), with a bootstrap interval over examples."""
    table = np.asarray(values, dtype=float)

    def resampled(chosen, axis=-1):
        return measure(table[:, chosen.astype(int)].mean(-1))

    interval = bootstrap_interval(np.arange(table.shape[1]), resampled, rng=run.rng, resamples=500)
    return {"measured": float(measure(table.mean(-1))), "interval": interval}


# %% [markdown]
# C3: how far does the loss rise above the higher end? The control is the straight line.


# %%
def height(mean):
    """Highest value over the higher of the ends."""
    return mean.max(0) / np.maximum(mean[0], mean[-1])


# %% [markdown]
# At the pivots, and with the pieces between them.

# %%
straight = float(height(line_loss[0].mean(-1).numpy()))
texts = {
    "C3a": ("at pivots", path_loss[0], "the band has not relaxed to the level of the ends within its interval"),
    "C3b": ("between pivots too", dense_loss[0], "straight pieces cut corners; more pivots lower this"),
}
for id, (where, values, reason) in texts.items():
    found = over_items(height, values) | {"control": ("straight line", straight), "reason": reason}
    text = f"highest loss on the path over that of the higher end, {where}"
    _ = run.claim(id, text, kind="statistical", rule="<= 1.1", paper="flat or lower", **found)

# %% [markdown]
# C4 compares the middle with the mean of the ends, because the ends differ. The control is the same construction with clean labels; for the language model, which has none, one end alone against the mean of both. The empirical Fisher is only reported: with clean labels it rises as far as the rule asks, so that the rule would show nothing.

# %%
sources = {"C4a": "top eigenvalue", "C4b": "trace", "C4c": "empirical Fisher"}
for id, name in sources.items():
    text, paper = f"{name}: middle over the mean of the ends", "about 2" if id == "C4a" else "2 to 3"
    found = {"measured": None, "reason": "the language model's curvature is judged by its exact trace only"}
    if is_mlp or name == "trace":
        values = profile if name == "trace" else measures[name][0]
        found = over_items(rise, values[three]) | {"reason": "rises by less than the rule asks, within its error"}
        if is_mlp:
            contrast = over_items(rise, measures[name][1][three])
            found["control"] = ("clean labels", contrast["measured"])
            print(f"{name}: {found['measured']:.2f} with noisy labels, {contrast['measured']:.2f} with clean ones")
        else:
            ends = values[[0, -1]].mean(-1)
            found["control"] = ("the sharper end", float(ends.max() / ends.mean()))
    kind, rule = ("descriptive", None) if id == "C4c" else ("statistical", "> 1.3")
    _ = run.claim(id, text, kind=kind, rule=rule, paper=paper, **found)

# %% [markdown]
# C5: a pivot counts where its drift exceeds two standard errors; six of eleven must point outwards, none inwards. The interval of C5a runs from the pivots that are significantly right to those that are not significantly wrong. The control of C5a is noise without curvature; that of C5b calls the sides by the other's name.


# %%
def counts_of(values, errors):
    """Shares of inner pivots with the right sign, significantly right, and not significantly wrong; wrong ones."""
    z = (side * (values / errors).numpy())[side != 0]
    return (z > 0).sum() / len(side), (z > 2).sum() / len(side), (z >= -2).sum() / len(side), int((z < -2).sum())


# %% [markdown]
# The setting that C5 rests on, and its random walk.

# %%
base = drifts[drift_eta[0], drift_batch[0]]
hot = bool(base.loss_after.mean() > 2 * base.loss_before.mean())
right_sign, right_sure, not_wrong, wrong = counts_of(base.drift, base.stderr)
walk = counts_of(base.noise.mean(0), base.noise.std(0) / replicas**0.5)

# %% [markdown]
# The two claims.

# %%
found = {"measured": right_sign, "interval": (right_sure, not_wrong), "reason": "too few pivots drift significantly"}
found = {"measured": None, "reason": "too hot: the replicas' loss doubled"} if hot else found
text = "share of inner pivots that drift to the end on their side (six of eleven)"
control = ("noise without curvature, significant", walk[1])
_ = run.claim("C5a", text, kind="statistical", rule=">= 0.54", control=control, paper="return to an end", **found)
found = {"measured": float(wrong), "interval": (wrong, wrong), "reason": "drift depends on more than the trace's slope"}
found = {"measured": None, "reason": "too hot: the replicas' loss doubled"} if hot else found
found = found if hot or right_sure else {"measured": None, "reason": "no pivot drifts significantly: nothing to count"}
control = ("sides swapped", float(round(right_sure * len(side))))
_ = run.claim(
    "C5b", "pivots that significantly drift the other way", kind="statistical", rule="== 0", control=control, **found
)

# %% [markdown]
# C6: the outward drift, averaged over the pivots, of the smallest batch minus that of each larger one, in standard errors; the smallest of these counts and must exceed two. The control is the same quantity for noise without curvature.


# %%
def excess(displacements, others):
    """Mean outward displacement minus that of each other setting, in standard errors of the difference: the smallest."""
    outward = [(d * torch.tensor(side).to(d)).mean(1) for d in (displacements, *others)]
    mean, error = np.array([(float(o.mean()), float(o.std()) / replicas**0.5) for o in outward]).T
    return ((mean[0] - mean[1:]) / np.hypot(error[0], error[1:])).min()


# %% [markdown]
# Against each larger batch. A number of standard errors is judged as it stands.

# %%
found = {"measured": None, "reason": "one batch size only, to save time"}
if len(drift_batch) > 1:
    larger = [drifts[drift_eta[0], b] for b in drift_batch[1:]]
    value = excess(base.displacements, [d.displacements for d in larger])
    control = ("noise without curvature", excess(base.noise, [d.noise for d in larger]))
    reason = "the difference is within its error"
    found = {"measured": value, "interval": (value, value), "control": control, "reason": reason}
text = "outward drift of the smallest batch minus that of a larger one, in standard errors, worst"
_ = run.claim("C6", text, kind="statistical", rule="> 2", paper="B = 16 ten times faster than 256", **found)

# %% [markdown]
# C7a counts trunks whose loss barrier falls below a twentieth strictly earlier than their trace barrier (one that never does counts as latest). Two of three are asked for. The control is the opposite order. C7b, only reported, is what a finer grid of $k$ would resolve.

# %%
found = {"measured": None, "reason": "left out to save time"}
if branch_total:
    below = [
        np.c_[values < 0.05 * values[:, :1], np.ones(len(values), bool)] for values in (loss_barrier, trace_barrier)
    ]
    energy, entropy = (
        np.where(values[:, :1] > 0, rows, True).argmax(1)
        for values, rows in zip((loss_barrier, trace_barrier), below, strict=True)
    )
    valid = loss_barrier[:, 0] > 0
    first = (energy < entropy)[valid].astype(float)
    print(
        "gone at step: loss",
        [([*branch_steps, None])[i] for i in energy],
        "trace",
        [([*branch_steps, None])[i] for i in entropy],
    )
    found = {"measured": None, "reason": "fewer than two trunks have a loss barrier at k = 0"}
    if valid.sum() > 1:
        control = ("trace barrier gone first", float((energy > entropy)[valid].mean()))
        found = {"measured": first.mean(), "interval": bootstrap_interval(first, rng=run.rng), "control": control}
        found["reason"] = "in the other trunks both go between the same two steps k; in none the trace goes first"
text = "share of trunks whose loss barrier disappears before their trace barrier (two of three)"
_ = run.claim("C7a", text, kind="statistical", rule=">= 0.66", paper="the curvature barrier persists", **found)

# %% [markdown]
# How much larger the remaining share of the trace barrier is than that of the loss barrier, half-way through the grid.

# %%
found = {"measured": None, "reason": "left out to save time"}
if branch_total:
    half = len(branch_steps) // 2
    left_over = [values[:, half] / values[:, 0] for values in (trace_barrier, loss_barrier)]
    found = {"measured": float(np.median(left_over[0] / np.maximum(left_over[1], 1e-9)))}
text = "remaining share of the trace barrier over that of the loss barrier, middle k, median"
_ = run.claim("C7b", text, kind="descriptive", rule=None, paper="the curvature barrier persists", **found)

# %% [markdown]
# C8 takes the inner pivots whose loss is at most five per cent above the ends' mean, and asks that the *least* of their traces exceeds the trace of the *sharper* end. The control puts the loss in the trace's place. Look at the regression slope as well: a trace that was merely proportional to the loss would give 1.

# %%
level = path_loss[0].mean(-1)
matched = np.flatnonzero((level <= 1.05 * level[[0, -1]].mean()).numpy())
matched = matched[(matched > 0) & (matched < K - 1)]
regression = np.polyfit(np.log(level.numpy()), np.log(profile.mean(-1).numpy()), 1)[0]
print(
    f"inner pivots with the loss of the ends or less: {len(matched)} of {K - 2}; slope of log trace on log loss {regression:.2f}"
)


# %% [markdown]
# The claim.


# %%
def least(mean):
    return mean[2:].min(0) / mean[:2].max(0)


found = {"measured": None, "reason": "no inner pivot has a loss as low as the ends"}
if len(matched):
    rows = [0, K - 1, *matched]
    found = over_items(least, profile[rows]) | {"reason": "a pivot next to an end is no sharper than the other end"}
    found["control"] = ("the loss in place of the trace", float(least(level[rows].numpy())))
text = "inner pivots of equal or lower loss: least trace over that of the sharper end"
_ = run.claim("C8", text, kind="statistical", rule="> 1", paper="not a loss artefact", **found)

# %% [markdown]
# All claims with their numbers.

# %%
run.table()

# %% [markdown]
# The verdicts, as the record keeps them.

# %% tags=["nbval-check-output"]
run.finish()

# %% [markdown]
# ## Limits, full scale, exercises
#
# What this run does not show:
#
# - *Relaxation to an end.* We measure a force over a few dozen steps, not the return that the paper reports for wide networks; at this size projected SGD hardly moves.
# - *More than one pair of minima.* Intervals are over training examples or replicas, on one path a case. `[grid.width]` repeats it for other seeds.
# - *That curvature alone is the cause.* SGD noise is neither white nor isotropic; $T\ln g$ is an analogy outside C1 and C2.
# - *Invariance.* Rescaling a ReLU network's layers changes its trace at equal function; weight decay fixes the scale here.

# %% [markdown]
# **Full scale.** The paper uses WRN-16-4 and ResNets on CIFAR. `eb.module_logits(module, images)` turns any module that treats examples one by one into a function of flat vectors, and everything above takes it; it needs torchvision, its download and hours of a GPU a path. `preset="full"` stays with what installs here: 1,000 MNIST images, a deeper network, 25 pivots, hours on a workstation.
#
# `preset="real"` joins two fine-tunes of a pretrained language model; its record lies beside this one. With so few pivots its drift (C5) is fragile: with other first updates of the same rank no pivot drifted significantly, where the record counts four of five.
#
# Next: [benign_overfitting](benign_overfitting.ipynb) for a network whose limit is known without training, or [layernorm_removal](layernorm_removal.ipynb).

# %% [markdown]
# **Exercise 1.** Multiply a hidden layer's weights and biases by $c$, and divide the next layer's weights by $c$. What happens to the function, and to the trace?
#
# <details><summary>Solution</summary>
#
# A ReLU network is the same function, but its trace changes: curvature is a property of the parametrisation too.
#
# ```python
# theta = tiny.logits.draw(1, torch.Generator().manual_seed(0))
# w1, b1, w2, b2 = theta.split([15, 5, 15, 3], -1)
# scaled = torch.cat([4 * w1, 4 * b1, w2 / 4, b2], -1)
# assert torch.allclose(tiny.logits(theta), tiny.logits(scaled))
# before, after = (float(eb.fisher_trace(tiny, t).mean()) for t in (theta, scaled))
# assert after > 1.5 * before
# ```
#
# </details>
#
# **Exercise 2.** Two fast directions of different stiffness, $g_1=g$ and $g_2=1/g$. Is there an entropic force?
#
# <details><summary>Solution</summary>
#
# No: $\ln\det H_\perp=\ln g_1+\ln g_2=0$, although the trace $g+1/g$ varies. The determinant matters, not the trace.
#
# ```python
# integral = lambda g: torch.exp(-0.5 * g[:, None] * x_grid**2 / 0.01).sum(1)
# both = integral(stiffness(y_grid)) * integral(1 / stiffness(y_grid))
# assert float(both.log().std()) < 1e-3 < float(integral(stiffness(y_grid)).log().std())
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** In the smallest network, halve the learning rate and double the noise variance. What decay do you expect by the same time?
#
# <details><summary>Solution</summary>
#
# The same: the rate is $\eta\sigma^2$, and only the temperature counts.
#
# ```python
# def lost(rate, sigma):
#     noise = sigma * torch.randn(round(10 / rate), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
#     points, _ = eb.minimal_sgd(torch.tensor([2.0, 0.5]), rate, noise)
#     gap = points[:, 0] ** 2 - points[:, 1] ** 2
#     return float(1 - gap[-1] / gap[0])
#
# assert abs(lost(0.005, 0.5 * 2**0.5) / lost(0.01, 0.5) - 1) < 0.3
# ```
#
# </details>
