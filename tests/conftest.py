"""Fixtures of the whole test run; it refuses to start where the network is not blocked."""

import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from demo_project import OFFLINE, SLUG, Command, lay_out_project, project_environment


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples in every run, and refuse to run where the network is not blocked, as `make unit` does."""
    hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
    hypothesis.settings.load_profile("repeatable")
    if not hasattr(sys.modules.get("sitecustomize"), "NetworkBlockedError"):
        raise pytest.UsageError(f"run the tests by `make unit`, or with PYTHONPATH={OFFLINE}")


@pytest.fixture(scope="session")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one paper, made by the command that a newcomer uses. Its path has a space and an umlaut."""
    root = lay_out_project(tmp_path_factory.mktemp("projects") / "Spaß und mehr")
    result = subprocess.run(
        [sys.executable, "-m", "lib.batch", "new", SLUG],
        cwd=root,
        env=project_environment(root),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return root


@pytest.fixture
def project(laid_out: Path, tmp_path: Path) -> Path:
    """A copy of the laid-out project that a test may spoil."""
    root = tmp_path / "Spaß und mehr"
    shutil.copytree(laid_out, root, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return root


@pytest.fixture
def batch(project: Path) -> Command:
    """Run ``python -m lib.batch`` in the project and return its result."""

    def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "lib.batch", *arguments],
            cwd=project,
            env=project_environment(project),
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    return run
