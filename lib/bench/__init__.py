"""What a notebook opens with: parameters, seeds, figures, claims, the record.

``run = start("<slug>", globals())`` is the whole entry; the rest hangs on the :class:`Run` that it returns.
The bench names no paper: it finds ``lib.methods.<slug>`` by its slug.
"""

from lib.bench.errors import BenchError, ClaimError, ParameterError
from lib.bench.intervals import bootstrap_interval
from lib.bench.run import Run, start
from lib.bench.source import show_source

__all__ = ["BenchError", "ClaimError", "ParameterError", "Run", "bootstrap_interval", "show_source", "start"]
