"""Execute a notebook and commit its outputs to the working tree: the .ipynb, the record and the figures."""

import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from lib.batch.errors import NotebookError
from lib.batch.kernels import private_kernel
from lib.batch.notebooks import read_script, require_parameters_cell
from lib.bench.parameters import DEFAULT_PRESET
from lib.bench.project import FOLDER_VARIABLE, RECORD_NAME, ROOT, notebook_path, write_bytes, write_text
from lib.bench.record import Record

REAL_PRESET = "real"
THUMBNAIL_WIDTH = 320  # pixels


def refresh(slug: str, preset: str = DEFAULT_PRESET) -> Record:
    """Execute a notebook and update what is committed of it.

    At ``small`` that is the .ipynb, ``data/results/<slug>.json`` and ``figures/<slug>/``; at ``real`` only
    ``data/results/<slug>.real.json``. Where a cell fails nothing is written.

    Raises:
        NotebookError: a cell failed, or the preset has no committed record.
    """
    if preset not in (DEFAULT_PRESET, REAL_PRESET):
        raise NotebookError(f"only {DEFAULT_PRESET!r} and {REAL_PRESET!r} have a committed record, not {preset!r}")
    script = ROOT / "notebooks" / f"{slug}.py"
    notebook = read_script(script)
    require_parameters_cell(notebook, script.name)
    folder = ROOT / "runs" / "refresh" / slug
    shutil.rmtree(folder, ignore_errors=True)
    parameters = {} if preset == DEFAULT_PRESET else {"preset": preset}
    executed = execute(notebook, folder, parameters)
    record = Record.read(folder / RECORD_NAME)
    suffix = "" if preset == DEFAULT_PRESET else f".{preset}"
    record_path = ROOT / "data" / "results" / f"{slug}{suffix}.json"
    record_path.parent.mkdir(parents=True, exist_ok=True)
    if preset == DEFAULT_PRESET:
        record = _commit_figures(record, folder)
        write_text(notebook_path(slug), nbformat.writes(executed) + "\n")
    record.write(record_path)
    return record


def execute(notebook: NotebookNode, folder: Path, parameters: dict[str, Any]) -> NotebookNode:
    """Execute a notebook in memory, its record and figures going to ``folder``; no times or paths enter its metadata.

    Raises:
        NotebookError: a cell failed or the kernel died.
    """
    if parameters:
        notebook = parameterize_notebook(load_notebook_node(notebook), parameters)
    with private_kernel() as config:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(ROOT)}},
            config=config,
        )
        try:
            client.execute(env={**os.environ, FOLDER_VARIABLE: str(folder)})
        except (CellExecutionError, DeadKernelError) as error:
            raise NotebookError(str(error)) from None
    # The interpreter's patch version would change the file on every machine.
    notebook.metadata["language_info"].pop("version", None)
    return notebook


def _commit_figures(record: Record, folder: Path) -> Record:
    """Copy the run's figures to ``figures/<slug>``, with a thumbnail of the first, and point the record at them."""
    target = ROOT / "figures" / record.slug
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    figures = []
    for figure in record.figures:
        data = (folder / figure.path).read_bytes()
        assert hashlib.sha256(data).hexdigest() == figure.sha256
        write_bytes(target / f"{figure.name}.png", data)
        figures.append(figure.model_copy(update={"path": f"figures/{record.slug}/{figure.name}.png"}))
    if figures:
        write_bytes(target / "thumbnail.png", _thumbnail(ROOT / figures[0].path))
    return record.model_copy(update={"figures": figures})


def _thumbnail(path: Path) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(path) as picture:
        height = round(picture.height * THUMBNAIL_WIDTH / picture.width)
        small = picture.convert("RGB").resize((THUMBNAIL_WIDTH, height), Image.Resampling.LANCZOS)
        small.quantize(64).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
