"""What all loading of pretrained models has in common: it is silent and leaves the random generators alone."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

LanguageModel = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Silences the bars, warnings and log lines of loading; restores settings and global generators afterwards."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    disabled = logging.root.manager.disable
    log.set_verbosity_error()
    log.disable_progress_bar()
    logging.disable(logging.WARNING)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        stack.enter_context(warnings.catch_warnings())
        # The GGUF reader draws its bar with plain tqdm, which has no switch of its own.
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(disabled)
            log.set_verbosity(verbosity)
            if bars:
                log.enable_progress_bar()


def ready(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float32 and evaluation mode."""
    # transformers derives the loss from the class name, finds none in "GPT2LMHeadModel", and warns at the first call.
    if model.loss_type is None:
        model.loss_type = "ForCausalLM"
    return model.float().eval()
