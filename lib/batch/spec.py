"""What identifies a run: its paper, its complete parameters and the code that it depends on."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lib.bench.errors import ParameterError
from lib.bench.parameters import load_presets, resolve
from lib.bench.project import ROOT, nearest
from lib.bench.record import syntax_sha256

RUNS = ROOT / "runs"


@dataclass(frozen=True)
class RunSpec:
    """One run to do.

    Attributes:
        slug: the paper.
        parameters: complete and validated.
        runs: folder that holds the folders of all runs.
        threads: threads that the run's kernel may use.
        timeout: seconds after which the run is stopped, or None.
    """

    slug: str
    parameters: dict[str, Any]
    runs: str = str(RUNS)
    threads: int = 1
    timeout: float | None = None

    @cached_property
    def id(self) -> str:
        """Slug and hash; equal for equal parameters and equal code."""
        content = json.dumps([self.parameters, _code_sha256(self.slug)], sort_keys=True)
        return f"{self.slug}-{hashlib.sha256(content.encode('utf-8')).hexdigest()[:12]}"

    @property
    def folder(self) -> Path:
        """Folder of this run."""
        return Path(self.runs) / self.id

    def to_json(self) -> str:
        """Text that :meth:`from_json` reads back, for the process that does the run."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunSpec":
        """Inverse of :meth:`to_json`."""
        return cls(**json.loads(text))


def make_spec(slug: str, explicit: Mapping[str, Any], **options: Any) -> RunSpec:
    """A run of a paper with some parameters set and the others taken from preset and defaults.

    Raises:
        ParameterError: no such paper or parameter, or a value out of range.
    """
    return RunSpec(slug, resolve(slug, explicit).model_dump(), **options)


def expand_grid(path: Path, name: str, explicit: Mapping[str, Any], **options: Any) -> list[RunSpec]:
    """All runs of the table ``[grid.<name>]`` of a TOML file whose stem is a slug.

    A list is an axis of the grid; anything else is set in every run. (For a parameter that is a list itself, an axis
    is a list of lists.) ``explicit`` values override those of the grid.

    Raises:
        ParameterError: no such file or grid, or one of the grid's values is refused.
    """
    if not path.is_file():
        raise ParameterError(f"there is no file {path}; a grid is a table [grid.<name>] of presets/<slug>.toml")
    try:
        grids = tomllib.loads(path.read_text(encoding="utf-8")).get("grid", {})
    except tomllib.TOMLDecodeError as error:
        raise ParameterError(f"{path} is not valid TOML: {error}") from None
    if name not in grids:
        raise ParameterError(f"{path} has no grid {name!r}; {nearest(name, grids)}")
    table = {**grids[name], **{key: [value] for key, value in explicit.items()}}
    axes = [
        [(key, value) for value in (values if isinstance(values, list) else [values])] for key, values in table.items()
    ]
    specs = [make_spec(path.stem, dict(choice), **options) for choice in itertools.product(*axes)]
    return list({spec.id: spec for spec in specs}.values())


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Values of ``name=value`` arguments, read as TOML; what is not TOML is a string.

    Raises:
        ParameterError: an argument has no ``=``.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ParameterError(f"-p takes name=value, not {assignment!r}")
        try:
            values[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[name.strip()] = text
    return values


def preset_names(slug: str) -> list[str]:
    """Names of a paper's presets."""
    return list(load_presets(slug)[0])


def _code_sha256(slug: str) -> str:
    """Hash of all code that a run's result can depend on."""
    rooms = [path for room in ("bench", "substrates") for path in sorted((ROOT / "lib" / room).glob("*.py"))]
    return syntax_sha256(ROOT / "notebooks" / f"{slug}.py", ROOT / "lib" / "methods" / f"{slug}.py", *rooms)
