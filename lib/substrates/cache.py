"""Folders of derived files under the user's cache: built once, checked at each use, rebuilt when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs
from filelock import FileLock

_MANIFEST = "manifest.json"


def cache_root() -> Path:
    """Root of the cache: ``PAPERS_THAT_RUN_CACHE`` if set, else the user's cache folder of this platform."""
    override = os.environ.get("PAPERS_THAT_RUN_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("papers-that-run"))


def cached_folder(name: str, build: Callable[[Path], None]) -> Path:
    """Folder `name` of the cache; `build(folder)` fills it if it is absent or damaged.

    A manifest of SHA-256 digests, written last, is compared with the files at every call: a folder that is
    incomplete or altered is removed and built again. The folder appears under its name only when it is whole, and
    a file lock keeps two processes from building it at once.

    Args:
        name: folder name, without separators.
        build: writes files into the (empty) folder that it is given.
    """
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not _is_whole(folder):
            _remove(folder)
            staging = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".partial", dir=root))
            try:
                build(staging)
                manifest = {path.name: _digest(path) for path in sorted(staging.iterdir())}
                (staging / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
                staging.replace(folder)
            finally:
                _remove(staging)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return all(_digest(folder / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
