import subprocess
import sys
from pathlib import Path

import pytest

from lib.substrates.cache import cached_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "Spaß und mehr"
    monkeypatch.setenv("PAPERS_THAT_RUN_CACHE", str(root))
    return root


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "one.bin").write_bytes(b"one" * 1000)
        (folder / "two.txt").write_text("zwei ü", encoding="utf-8")


def test_a_folder_is_built_once() -> None:
    build = Builder()
    first, second = cached_folder("thing", build), cached_folder("thing", build)
    assert first == second
    assert (first / "two.txt").read_text(encoding="utf-8") == "zwei ü"
    assert build.calls == 1


@pytest.mark.parametrize("damage", ["truncate", "alter", "delete", "no manifest", "bad manifest", "not a folder"])
def test_a_damaged_folder_is_built_again(damage: str) -> None:
    build = Builder()
    folder = cached_folder("thing", build)
    match damage:
        case "truncate":
            (folder / "one.bin").write_bytes(b"one")
        case "alter":
            (folder / "one.bin").write_bytes(b"two" * 1000)
        case "delete":
            (folder / "two.txt").unlink()
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "bad manifest":
            (folder / "manifest.json").write_text("[1", encoding="utf-8")
        case "not a folder":
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            folder.write_text("", encoding="utf-8")
    assert (cached_folder("thing", build) / "one.bin").read_bytes() == b"one" * 1000
    assert build.calls == 2


def test_a_failing_build_leaves_nothing_behind(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder("thing", fail)
    assert [path.name for path in own_cache.iterdir()] == ["thing.lock"]
    assert cached_folder("thing", Builder()).is_dir()


def test_two_processes_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom lib.substrates.cache import cached_folder\n"
        "def build(folder):\n"
        "    with open(sys.argv[1], 'a') as stream: stream.write('built ')\n"
        "    time.sleep(0.5)\n"
        "    (folder / 'a').write_text('a')\n"
        "assert (cached_folder('thing', build) / 'a').read_text() == 'a'\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(log)]) for _ in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    assert log.read_text() == "built "
