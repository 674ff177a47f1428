"""Runs notebooks: papermill underneath, Dask on top, and the command line ``python -m lib.batch``."""
