"""What a notebook opens with: parameters, seeds, figures, claims, the record.

``run = start("<slug>", globals())`` is the whole entry; the rest hangs on the :class:`Run` that it returns.
The bench names no paper: it finds ``lib.methods.<slug>`` by its slug.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lib.bench.errors import BenchError, ClaimError, ParameterError
    from lib.bench.intervals import bootstrap_interval
    from lib.bench.run import Run, start
    from lib.bench.source import show_source

__all__ = ["BenchError", "ClaimError", "ParameterError", "Run", "bootstrap_interval", "show_source", "start"]

_HOMES = {
    "BenchError": "errors",
    "ClaimError": "errors",
    "ParameterError": "errors",
    "Run": "run",
    "bootstrap_interval": "intervals",
    "show_source": "source",
    "start": "run",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the batch needs the bench's parameters and records, but not matplotlib and scipy, whose
    # import takes longer than the rest of a command.
    if name in _HOMES:
        return getattr(importlib.import_module(f"lib.bench.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
