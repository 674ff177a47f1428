"""Parameters: one validation, whoever runs the notebook.

JupyterLab, plain papermill and our batch all end in :func:`resolve`. In a kernel the values of the parameters cell
and the values that papermill injected are told apart by the history of executed cells, which every kernel keeps.
"""

import ast
import importlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from lib.bench.errors import ParameterError
from lib.bench.project import ROOT, nearest, slugs

DEFAULT_PRESET = "small"
INJECTED_MARK = "# Parameters"  # first line of the cell that papermill adds


def parameters_model(slug: str) -> type[BaseModel]:
    """The pydantic model ``lib.methods.<slug>.Parameters``.

    Raises:
        ParameterError: there is no such paper.
    """
    name = f"lib.methods.{slug}"
    try:
        model: type[BaseModel] = importlib.import_module(name).Parameters
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ParameterError(f"there is no paper {slug!r}; {nearest(slug, slugs())}") from None
    return model


def load_presets(slug: str) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Named parameter sets and named grids of ``presets/<slug>.toml``.

    Returns:
        ``(presets, grids)``; the presets always hold ``small``, which changes nothing.
    """
    path = ROOT / "presets" / f"{slug}.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    grids = tables.pop("grid", {})
    return {DEFAULT_PRESET: {}, **tables}, grids


def resolve(slug: str, injected: Mapping[str, Any], edited: Mapping[str, Any] | None = None) -> BaseModel:
    """Complete, validated parameters: injected, then edited in the cell, then preset, then default.

    Args:
        slug: the paper.
        injected: values given from outside; they count also where they equal the default.
        edited: values that the parameters cell holds; those that equal the default do not count.

    Raises:
        ParameterError: unknown name (the nearest valid one is named), unknown preset, wrong type or range.
    """
    model = parameters_model(slug)
    defaults = model().model_dump()
    edited = edited or {}
    for name in [*injected, *edited]:
        if name not in defaults:
            raise ParameterError(f"{slug} has no parameter {name!r}; {nearest(name, defaults)}")
    changed = {name: value for name, value in edited.items() if value != defaults[name]}
    explicit = {**changed, **injected}
    presets, _ = load_presets(slug)
    preset = explicit.get("preset", DEFAULT_PRESET)
    if preset not in presets:
        raise ParameterError(f"{slug} has no preset {preset!r}; {nearest(str(preset), presets)}")
    try:
        return model.model_validate({**presets[preset], **explicit})
    except ValidationError as error:
        raise ParameterError(f"{slug}: {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        name = ".".join(str(step) for step in item["loc"]) or "parameters"
        parts.append(f"{name} = {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}")
    return "; ".join(parts)


def from_namespace(slug: str, namespace: Mapping[str, Any]) -> BaseModel:
    """Parameters of a running notebook, from its global names and its history of executed cells.

    Raises:
        ParameterError: as :func:`resolve`; also where papermill's values came before the parameters cell,
            which overwrote them: the cell has lost its tag.
    """
    fields = set(parameters_model(slug).model_fields)
    cells = [source for source in namespace.get("In", ()) if isinstance(source, str)]
    own, injected_cells = _parameter_cells(cells)
    edited_names = (_assigned(own) if own else set()) | (fields & namespace.keys())
    injected_names = {name for source in injected_cells for name in _assigned(source)}
    return resolve(
        slug,
        injected={name: namespace[name] for name in sorted(injected_names) if name in namespace},
        edited={name: namespace[name] for name in sorted(edited_names - injected_names) if name in namespace},
    )


def _parameter_cells(cells: Sequence[str]) -> tuple[str | None, list[str]]:
    """The last executed parameters cell and the cells that papermill injected after it."""
    injected = [index for index, source in enumerate(cells) if source.lstrip().startswith(INJECTED_MARK)]
    own = [
        index for index, source in enumerate(cells) if index not in injected and {"preset", "seed"} <= _assigned(source)
    ]
    if not own:
        return None, [cells[index] for index in injected]
    if any(index < own[0] for index in injected):
        raise ParameterError(
            "the values that papermill injected were overwritten by the parameters cell, which has lost its tag; "
            "tag that cell 'parameters' and run again"
        )
    return cells[own[-1]], [cells[index] for index in injected if index > own[-1]]


def _assigned(source: str) -> set[str]:
    """Names that a cell assigns at its top level."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a cell with a magic, which can't be a parameters cell of ours
        return set()
    names: set[str] = set()
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
