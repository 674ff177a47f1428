"""Errors of the batch that a person can mend."""


class NotebookError(Exception):
    """A notebook can't be run, refreshed, laid out or synced; the message says what to do."""
