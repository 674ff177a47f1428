"""What a fresh machine reads first: the lists of dependencies, the commands, the marks in README."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lib.batch.readme import END, START
from lib.bench.project import ROOT


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, object]:
    return tomllib.loads(read("pyproject.toml"))["project"]


def locked() -> dict[str, Version]:
    lines = [line for line in read("requirements.lock").splitlines() if line and not line.startswith("#")]
    pairs = [Requirement(line) for line in lines]
    return {pair.name.lower().replace("_", "-"): Version(str(pair.specifier).removeprefix("==")) for pair in pairs}


def test_the_lock_keeps_the_ranges_of_the_project() -> None:
    optional = project()["optional-dependencies"]
    assert isinstance(optional, dict)
    groups = [project()["dependencies"], *(values for name, values in optional.items() if name != "all")]
    versions = locked()
    for text in (text for group in groups for text in group):  # type: ignore[attr-defined]
        requirement = Requirement(text)
        assert versions[requirement.name.lower()] in requirement.specifier, text


def test_torch_is_pinned_as_everywhere() -> None:
    assert locked()["torch"] == Version("2.13.0")


def test_the_data_lock_has_a_hash_for_each_pin() -> None:
    lines = read("requirements-substrates.lock").replace("\\\n", " ").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", pin.strip()) for pin in pins)


def test_the_conda_route_names_the_project_itself() -> None:
    environment = yaml.safe_load(read("environment.yml"))
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert all(re.fullmatch(r"[a-z-]+([<>=][0-9.,<>=]+)?", entry) for entry in conda)
    (itself,) = pip
    extras = re.fullmatch(r"--editable=\.\[([a-z,]+)\]", itself)
    assert extras
    assert set(extras[1].split(",")) <= set(project()["optional-dependencies"])  # type: ignore[arg-type,call-overload]
    ranges = {re.split("[<>=]", entry)[0]: SpecifierSet(entry.lstrip("abcdefghijklmnopqrstuvwxyz-")) for entry in conda}
    assert Version("3.11") in ranges["python"]
    assert locked()["torch"] in ranges["pytorch-cpu"]


def test_make_alone_lists_the_commands() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout
    for command in ("setup", "lab", "run", "batch", "test", "sync", "refresh", "new", "format", "lint", "clean"):
        assert re.search(rf"^{command}\s", shown, re.MULTILINE), command


def test_readme_opens_with_the_two_commands_and_keeps_its_marks() -> None:
    text = read("README.md")
    assert text.index("make run NB=") < text.index("make test") < 1000
    assert text.index(START) < text.index(END)


def test_readme_names_every_package_that_carries_data() -> None:
    pins = re.findall(r"^([A-Za-z0-9-]+)==", read("requirements-substrates.lock"), re.MULTILINE)
    assert [pin for pin in pins if f"`{pin}`" not in read("README.md")] == []


def test_the_network_is_blocked_here_and_in_children() -> None:
    request = "import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=5)"
    child = subprocess.run([sys.executable, "-c", request], capture_output=True, encoding="utf-8", check=False)
    assert "tests reach no network" in child.stderr
    with pytest.raises(OSError, match="reach no network"):
        exec(request)


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "CITATION.cff", ".pre-commit-config.yaml", "notebooks/jupytext.toml"]
)
def test_settings_are_valid(name: str) -> None:
    parse = tomllib.loads if name.endswith(".toml") else yaml.safe_load
    assert parse(read(name))
