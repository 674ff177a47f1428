"""Errors that say in one sentence what to do, in a cell as on a terminal."""


class BenchError(Exception):
    """An error that the person running a notebook can mend; a cell shows its sentence without a traceback."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this in place of its own traceback formatting.
        return [f"{type(self).__name__}: {self}"]


class ParameterError(BenchError):
    """A parameter has an unknown name, a wrong type or a value out of range."""


class ClaimError(BenchError):
    """A claim is stated so that it proves nothing, or an exact claim does not hold."""
