"""One run of a notebook, from its validated parameters to its record."""

import hashlib
import importlib.metadata
import io
import os
import platform
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import psutil
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure as MatplotlibFigure
from pydantic import BaseModel
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from lib.bench.claims import judge
from lib.bench.errors import BenchError, ClaimError
from lib.bench.parameters import from_namespace
from lib.bench.project import FOLDER_VARIABLE, RECORD_NAME, ROOT, THREADS_VARIABLE, write_bytes
from lib.bench.record import Claim, Figure, Record, code_sha256

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def start(slug: str, namespace: dict[str, Any]) -> "Run":
    """Open a run: validate the parameters, write them back, fix threads, make the folder.

    Args:
        slug: the paper; names its notebook, method module, presets and record.
        namespace: the notebook's ``globals()``; the validated values replace those of the parameters cell.

    Raises:
        ParameterError: a parameter has an unknown name, a wrong type or a value out of range.
        BenchError: the output folder can't be written.
    """
    started = time.perf_counter()
    parameters = from_namespace(slug, namespace)
    namespace.update(parameters.model_dump())
    threads = _fix_threads()
    plt.style.use(["default", Path(__file__).with_name("papers.mplstyle")])
    return Run(slug, parameters, _make_folder(slug), threads, started)


def _fix_threads() -> int:
    """Limit every pool of threads, so that runs side by side don't compete and sums keep their order."""
    threads = int(os.environ.get(THREADS_VARIABLE, "1"))
    threadpool_limits(threads)
    if "torch" in sys.modules:  # the method's own import decides whether torch is here
        sys.modules["torch"].set_num_threads(threads)
    return threads


def _make_folder(slug: str) -> Path:
    folder = Path(os.environ.get(FOLDER_VARIABLE) or ROOT / "runs" / "live" / slug)
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        write_bytes(folder / ".writable", b"")
        (folder / ".writable").unlink()
    except OSError as error:
        raise BenchError(
            f"can't write to the output folder {folder} ({error.strerror}); free that path or set {FOLDER_VARIABLE}"
        ) from None
    for stale in [folder / RECORD_NAME, *(folder / "figures").glob("*.png")]:
        stale.unlink(missing_ok=True)
    return folder


class Run:
    """What a notebook asks of the bench while it runs.

    Attributes:
        slug: the paper.
        preset: name of the parameter set.
        parameters: the validated parameters.
        folder: where this run may write.
        rng: NumPy generator, seeded by the parameter ``seed``.
    """

    def __init__(self, slug: str, parameters: BaseModel, folder: Path, threads: int, started: float) -> None:
        values = parameters.model_dump()
        self.slug = slug
        self.parameters = parameters
        self.preset: str = values["preset"]
        self.seed: int = values["seed"]
        self.folder = folder
        self.threads = threads
        self.rng = np.random.default_rng(self.seed)
        self._started = started
        self._code_sha256 = code_sha256(slug)  # of the code that runs, not of what an editor has made of it by the end
        self._figures: dict[str, Figure] = {}
        self._claims: dict[str, Claim] = {}

    def seeds(self, count: int) -> list[int]:
        """Independent integer seeds, the same for the same ``seed``; a longer list begins with the shorter one."""
        sequence = np.random.SeedSequence(self.seed, spawn_key=(1,))
        return [int(state) for state in sequence.generate_state(count)]

    def torch_generator(self) -> "torch.Generator":
        """A fresh torch generator, seeded by the parameter ``seed``."""
        import torch

        return torch.Generator().manual_seed(self.seed)

    def progress(self, items: Iterable[T], description: str) -> Iterable[T]:
        """Iterate with a bar in a live session; in batch, and in committed outputs, nothing is drawn."""
        return tqdm(items, desc=description, leave=False, disable="JPY_SESSION_NAME" not in os.environ)

    def figure(self, name: str, figure: MatplotlibFigure) -> None:
        """Save a figure as PNG under the run's folder, close it and show it. Equal data give equal bytes.

        Raises:
            BenchError: the name is not a plain file stem.
        """
        if not re.fullmatch(r"[a-z0-9_]+", name):
            raise BenchError(f"a figure's name has small letters, digits and underscores only, not {name!r}")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        plt.close(figure)
        data = buffer.getvalue()
        write_bytes(self.folder / "figures" / f"{name}.png", data)
        self._figures[name] = Figure(name=name, path=f"figures/{name}.png", sha256=hashlib.sha256(data).hexdigest())
        display(Image(data=data, format="png", alt=_alternative_text(figure, name)))

    def claim(self, id: str, statement: str, **judgement: Any) -> Claim:
        """Judge a claim and keep it for the record; see :func:`lib.bench.claims.judge` for the arguments.

        At the preset ``smoke`` only exact claims are evaluated: too little is run there for any other.
        """
        if self.preset == "smoke" and judgement.get("kind") == "statistical":
            judgement |= {"measured": None, "interval": None, "control": None}
            judgement["reason"] = "the preset smoke evaluates exact claims only"
        claim = judge(id, statement, **judgement)
        self._claims[id] = claim
        return claim

    def table(self) -> None:
        """Show every claim: what the paper says, what was measured, the control, the rule and the verdict."""
        header = "| claim | paper | measured | control | rule | verdict |\n|---|---|---|---|---|---|\n"
        display(Markdown(header + "\n".join(_table_row(claim) for claim in self._claims.values())))

    def finish(self) -> None:
        """Write the record and print one line a claim: id, kind, rule and verdict, never a digit that could waver.

        Raises:
            ClaimError: an exact claim does not hold, or a claim is not shown; the record is written all the same.
        """
        record = Record(
            slug=self.slug,
            preset=self.preset,
            parameters=self.parameters.model_dump(),
            seed=self.seed,
            threads=self.threads,
            code_sha256=self._code_sha256,
            wall_seconds=round(time.perf_counter() - self._started, 2),
            peak_memory_mib=round(_peak_memory_mib(), 1),
            versions=_versions(),
            figures=list(self._figures.values()),
            claims=list(self._claims.values()),
        )
        record.write(self.folder / RECORD_NAME)
        for claim in record.claims:
            print(verdict_line(claim))
        if record.unsound:
            raise ClaimError(
                f"{', '.join(record.unsound)}: an exact claim must hold, and a control must fail the rule it controls"
            )


def verdict_line(claim: Claim) -> str:
    """The line that ``finish`` prints for a claim."""
    return f"{claim.id:<4} {claim.kind:<12} {claim.rule or '-':<10} {claim.verdict or 'reported'}"


def _table_row(claim: Claim) -> str:
    measured = "–" if claim.measured is None else f"{claim.measured:.4g}"
    if claim.interval is not None:
        measured += f" [{claim.interval[0]:.3g}, {claim.interval[1]:.3g}]"
    if claim.control is not None:
        value = "not finite" if claim.control.measured is None else f"{claim.control.measured:.4g}"
        control = f"{claim.control.what}: {value}"
    else:
        control = f"mutation: {claim.mutation}" if claim.mutation else "–"
    verdict = f"**{claim.verdict}**" if claim.verdict else "reported"
    if claim.reason:
        verdict += f" ({claim.reason})"
    cells = [f"{claim.id}: {claim.statement}", claim.paper or "–", measured, control, claim.rule or "–", verdict]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _alternative_text(figure: MatplotlibFigure, name: str) -> str:
    titles = [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center") if axes.get_title(loc)]
    suptitle = figure.get_suptitle()
    return "; ".join([suptitle] if suptitle else titles).replace("\n", " ") or name


def _peak_memory_mib() -> float:
    try:
        import resource
    except ImportError:  # Windows keeps the peak elsewhere
        return float(psutil.Process().memory_info().peak_wset) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) / (2**20 if sys.platform == "darwin" else 2**10)


def _versions() -> dict[str, str]:
    """Versions of Python and of those of the project's dependencies that this run has loaded."""
    versions = {"python": platform.python_version()}
    modules = {name.partition(".")[0] for name in sys.modules}
    for requirement in importlib.metadata.requires("papers-that-run") or ():
        name = re.split(r"[^A-Za-z0-9_.-]", requirement)[0].rstrip(".")
        module = {"scikit-learn": "sklearn"}.get(name, name.replace("-", "_"))
        if module in modules and "extra == 'dev'" not in requirement:
            versions[name] = importlib.metadata.version(name)
    return dict(sorted(versions.items()))
