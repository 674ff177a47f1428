"""A small project of its own for tests that run notebooks: the library with one paper laid out from the template."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lib.bench.project import ROOT

OFFLINE = ROOT / "tests" / "offline"
SLUG = "demo"

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def project_environment(root: Path) -> dict[str, str]:
    """Environment in which ``lib`` is the copy under ``root``, without network."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(OFFLINE)])}


def lay_out_project(root: Path) -> Path:
    """Copy the library without its papers, and lay out the template's paper."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lib", root / "lib", ignore=ignore)
    for module in (root / "lib" / "methods").glob("[a-z]*.py"):
        module.unlink()
    shutil.copytree(ROOT / "tests" / "notebooks", root / "tests" / "notebooks", ignore=ignore)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/demo_project.py", "tests/sanitize.cfg"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(OFFLINE, root / "tests" / "offline", ignore=ignore)
    (root / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "jupytext.toml", root / "notebooks")
    readme = "<!-- papers: generated from data/results, do not edit -->\n<!-- end of papers -->\n"
    (root / "README.md").write_text(readme, encoding="utf-8")
    return root
