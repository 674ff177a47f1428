"""This sampler beside devinterp 2: the same language model, data, chain settings and number of draws.

Prints a Markdown table. Both sample every weight of a small Llama, trained here for a moment on Python's help texts
(a byte a token), with full-batch gradients. `agreement` is the correlation between two covariance matrices of
sequence losses: ours with devinterp's, and, as the most that can be expected of so many draws, ours with ours under
another seed. `time` is processor seconds, devinterp's over ours; devinterp also writes its traces to disk.

devinterp is not a dependency. In an environment of its own: install this project's `models` extra there with
`devinterp>=2.0.1`, pinning torch to the version of requirements.lock in the same command, then

    PYTHONPATH=. python benchmarks/bayesian_influence.py --chains 4 --draws 100 200
"""

import argparse
import contextlib
import io
import logging
import tempfile
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import lib.methods.bayesian_influence as bif
from lib.substrates.text import load_text
from lib.substrates.training import Plan, train

COLUMNS = [
    "chains",
    "draws",
    "agreement, devinterp",
    "agreement, other seed",
    "mean loss, ratio",
    "seconds, ours",
    "time ratio",
]


def trained_model(length: int, width: int, steps: int) -> tuple[nn.Module, Tensor]:
    """A two-layer Llama on bytes, and the stream it was trained on."""
    stream = torch.tensor(list(" ".join(load_text("pydoc-topics").texts).encode())[:200_000])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"vocab_size": 256, "hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 4}
        ends = {"bos_token_id": None, "eos_token_id": None}
        model = LlamaForCausalLM(LlamaConfig(**shape, **ends, num_hidden_layers=2, attn_implementation="eager"))

    def windows(generator: torch.Generator, size: int) -> Tensor:
        starts = torch.randint(len(stream) - length, (size, 1), generator=generator)
        return stream[starts + torch.arange(length)]

    def loss(net: nn.Module, tokens: Tensor) -> Tensor:
        return net(tokens, labels=tokens).loss

    train(model, windows, loss, Plan(steps, 5e-3, batch_size=16, warmup=5), generator=torch.Generator().manual_seed(0))
    return model.eval(), windows(torch.Generator().manual_seed(1), 16)


def token_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """Loss of each token after the first, (n, S - 1)."""
    logits = model(tokens, use_cache=False, return_dict=False)[0][:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(tokens[:, 1:].shape)


def ours(model: nn.Module, tokens: Tensor, options: argparse.Namespace, draws: int, seed: int) -> Tensor:
    """Token traces (C, T, n, S - 1). devinterp weighs the mean over tokens, we the mean over texts of sums."""
    traces = bif.sgld_sample(
        model, token_losses, (data := (tokens,)), data, n_beta=options.n_beta / (tokens.shape[1] - 1),
        epsilon=options.epsilon, gamma=options.gamma, n_chains=options.chains, n_draws=draws, burn_in=options.burn_in,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return traces.train


def theirs(model: nn.Module, tokens: Tensor, options: argparse.Namespace, draws: int) -> Tensor:
    """The same traces by devinterp's sampler."""
    from datasets import Dataset
    from devinterp.slt.sampling import sample

    data = Dataset.from_dict({"input_ids": tokens.tolist()}).with_format("torch")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        tree = sample(
            model, data, {"texts": (data, 1)}, lr=options.epsilon, n_beta=options.n_beta, localization=options.gamma,
            num_chains=options.chains, num_draws=draws, batch_size=len(tokens), num_burnin_steps=options.burn_in,
            num_init_loss_batches=1, output_path=Path(folder) / "samples.zarr", device="cpu",
        )  # fmt: skip
        losses = torch.tensor(tree.dataset["loss_texts"].values)
        seen = torch.tensor(tree.dataset["input_ids_texts"].values)
    # devinterp draws the texts of an observable in an order of its own.
    order = [int((seen == text).all(1).nonzero()[0]) for text in tokens]
    return losses[:, :, order]


def rows(options: argparse.Namespace) -> list[list[str]]:
    """Rows of the table, one for a number of draws."""
    model, tokens = trained_model(options.length, options.width, options.steps)
    table = []
    for draws in options.draws:
        begun = time.process_time()
        mine = ours(model, tokens, options, draws, seed=0)
        middle = time.process_time()
        their = theirs(model, tokens, options, draws)
        seconds = middle - begun, time.process_time() - middle
        runs = [mine, ours(model, tokens, options, draws, seed=1), their]
        sequences = [bif.LossTraces(run.double().sum(-1), run.double().sum(-1)) for run in runs]
        covariances = [bif.bayesian_influence(traces, center="pooled").scores.flatten() for traces in sequences]
        agreement = [np.corrcoef(covariances[0], other)[0, 1] for other in (covariances[2], covariances[1])]
        table.append(
            [
                str(options.chains),
                str(draws),
                *(f"{value:.3f}" for value in agreement),
                f"{their.mean() / mine.mean():.4f}",
                f"{seconds[0]:.1f}",
                f"{seconds[1] / seconds[0]:.2f}",
            ]
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--draws", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--burn-in", type=int, default=50)
    parser.add_argument("--n-beta", type=float, default=3000.0, help="weight of the mean token loss")
    parser.add_argument("--gamma", type=float, default=3000.0)
    parser.add_argument("--epsilon", type=float, default=3e-4)
    parser.add_argument("--length", type=int, default=24, help="tokens of a text")
    parser.add_argument("--width", type=int, default=32, help="width of the model")
    parser.add_argument("--steps", type=int, default=200, help="training steps of the model")
    options = parser.parse_args()
    if find_spec("devinterp") is None:
        raise SystemExit(
            "devinterp is not installed: this benchmark compares with it; its docstring says how to set it up"
        )
    if int(version("devinterp").split(".")[0]) < 2:
        raise SystemExit(f"devinterp {version('devinterp')} has no Bayesian influence: install devinterp>=2.0.1")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"devinterp {version('devinterp')}, torch {torch.__version__}\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for row in rows(options):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
