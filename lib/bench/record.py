"""The record of a run, ``results.json``: README's table and every later report are made from it alone."""

import ast
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lib.bench.project import ROOT, write_text

Verdict = Literal["holds", "fails", "not shown", "not evaluated"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Control(_Entry):
    """The same measurement with the method taken away."""

    what: str
    measured: float | None
    passes: bool


class Claim(_Entry):
    """A claim, its measurement and its verdict."""

    id: str = Field(pattern=r"^C\d+[a-z]?$")
    statement: str = Field(min_length=1)
    kind: Literal["exact", "statistical", "descriptive"]
    paper: str | None
    measured: float | None
    interval: tuple[float, float] | None
    rule: str | None
    control: Control | None
    mutation: str | None
    verdict: Verdict | None
    reason: str | None


class Figure(_Entry):
    """A saved picture; the path is relative to the folder of the record, or to the repository once committed."""

    name: str
    path: str
    sha256: str


class Record(_Entry):
    """Everything that a run leaves behind for others to read."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    slug: str
    preset: str
    parameters: dict[str, Any]
    seed: int
    threads: int
    code_sha256: str
    wall_seconds: float
    peak_memory_mib: float
    versions: dict[str, str]
    figures: list[Figure]
    claims: list[Claim]

    def write(self, path: Path) -> None:
        """Write the record as JSON, whole or not at all."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(path, text + "\n")

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Read a record.

        Raises:
            pydantic.ValidationError: the file is not a record.
        """
        return cls.model_validate_json(path.read_text(encoding="utf-8"))

    @property
    def unsound(self) -> list[str]:
        """Ids of the claims that no run may end with: exact ones that do not hold, and those that are not shown."""
        return [
            claim.id
            for claim in self.claims
            if claim.verdict == "not shown" or (claim.kind == "exact" and claim.verdict == "fails")
        ]


def code_sha256(slug: str) -> str:
    """Hash of the code behind a record: the notebook's code cells and the method module.

    Syntax trees are hashed, so comments, docstrings, prose and formatting do not age a record.
    """
    return syntax_sha256(ROOT / "notebooks" / f"{slug}.py", ROOT / "lib" / "methods" / f"{slug}.py")


def syntax_sha256(*paths: Path) -> str:
    """Hash of the syntax trees of Python files, docstrings left out; the same on every version of Python."""
    digest = hashlib.sha256()
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        digest.update(repr(_syntax(tree)).encode("utf-8"))
    return digest.hexdigest()


def _syntax(node: Any) -> Any:
    """A syntax tree as nested tuples, without positions, docstrings and empty fields (which differ by version)."""
    if isinstance(node, list):
        return [_syntax(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if (
        isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    ):
        fields["body"] = node.body[1:]
    return (type(node).__name__, [(name, _syntax(value)) for name, value in fields.items() if value not in (None, [])])
