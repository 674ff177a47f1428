"""Kernels that can start side by side."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from traitlets.config import Config


@contextlib.contextmanager
def private_kernel() -> Iterator[Config]:
    """Configuration of one kernel that talks through sockets in a folder of its own.

    Kernels on TCP pick their ports at the same moment and clash now and then; sockets in the file system can't, as
    long as each kernel has its own connection file (without one, all share ``kernel-ipc-1`` in the working folder).
    """
    if os.name == "nt":  # no such sockets there
        yield Config()
        return
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        connection_file = str(Path(folder) / "kernel.json")
        yield Config({"KernelManager": {"transport": "ipc", "connection_file": connection_file}})
