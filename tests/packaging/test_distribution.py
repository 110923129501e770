"""Wheel and sdist: what is in them, and that a clean environment runs the wheel on each Python there is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".uv" / "bin" / "uv"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LATER = ("3.12", "3.13")


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def uv() -> Path:
    if not UV.exists():
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("no .uv: the Makefile makes it")
        pytest.skip("no .uv: the Makefile makes it")
    return UV


def interpreter(version: str) -> Path | None:
    """A Python of that version on this machine; a shim may be there without one behind it."""
    found = [*Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}")]
    on_path = shutil.which(f"python{version}")
    for candidate in [*([Path(on_path)] if on_path else []), *found]:
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(wheel, sdist), built without any network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_holds_the_three_portions_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(distributions[0]).namelist()
    version = PROJECT["version"]
    roots = {name.split("/")[0] for name in names}
    assert roots == {"evertally", f"evertally-{version}.dist-info"}
    parts = {name.split("/")[1] for name in names if name.startswith("evertally/")}
    assert parts == {
        "counters",
        "accountants",
        "pipelines",
        "testing",
        "durable.py",
        "errors.py",
        "validation.py",
        "py.typed",
    }
    assert "evertally/__init__.py" not in names
    for needed in (
        *(f"evertally/{part}/py.typed" for part in ("counters", "accountants", "pipelines", "testing")),
        "evertally/pipelines/local/data/departures.csv.gz",
        "evertally/pipelines/schemas/release.schema.json",
        "evertally/accountants/budget/service/page/templates/base.html",
        "evertally/pipelines/metrics/templates/public.html",
    ):
        assert needed in names
    sources = {
        path.relative_to(ROOT / portion).as_posix()
        for portion in ("counters", "accountants", "pipelines")
        for path in (ROOT / portion / "evertally").rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = distributions
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    top = {path.name for path in unpacked.iterdir()}
    assert top == {
        *("counters", "accountants", "pipelines", "pyproject.toml", "PKG-INFO", ".gitignore"),
        *("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"),
    }
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=unpacked)
    (again,) = (tmp_path / "again").iterdir()
    contents = [zipfile.ZipFile(one) for one in (wheel, again)]
    first, second = ({info.filename: info.CRC for info in one.infolist()} for one in contents)
    assert first == second


def install(wheel: Path, python: str | Path, lock: Path, folder: Path) -> Path:
    """A fresh environment with a lock's packages and the wheel; its folder of programs."""
    run(uv(), "venv", "--quiet", "--python", python, folder, cwd=folder.parent)
    where = {"VIRTUAL_ENV": str(folder)}
    run(uv(), "pip", "sync", "--quiet", "--require-hashes", lock, cwd=folder.parent, **where)
    run(uv(), "pip", "install", "--quiet", "--no-deps", wheel, cwd=folder.parent, **where)
    return folder / "bin"


def check_installed(programs: Path, folder: Path) -> None:
    """The installed program says its version, runs the demo and comes from its own environment."""
    said = run(programs / "evertally", "--version", cwd=folder)
    assert said == f"evertally {PROJECT['version']}\n"
    where = run(programs / "python", "-c", "import evertally.counters as c; print(c.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(programs.parent)
    result = json.loads(run(programs / "evertally", "demo", "--out", folder / "out", "--json", cwd=folder))
    assert result["ok"]
    assert len(result["carriers"]) == 16
    assert abs(result["stderr"] - 20.53) < 0.01
    assert (folder / "out" / "totals.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_clean_environment_runs_the_demo(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    programs = install(distributions[0], sys.executable, ROOT / "requirements.lock", tmp_path / "venv")
    check_installed(programs, tmp_path)
    user = tmp_path / "user.py"
    user.write_text(
        "from evertally.errors import InvalidParameter\nreveal_type(InvalidParameter.exit_code)\n"
    )
    said = run(sys.executable, "-m", "mypy", "--python-executable", programs / "python", user, cwd=tmp_path)
    assert said.split('"')[1] in ("int", "builtins.int"), (
        "the errors are not typed for who installs the wheel"
    )


@pytest.mark.soak
def test_the_lock_resolves_on_later_pythons(tmp_path: Path) -> None:
    resolving = {version: resolve(version, tmp_path) for version in LATER}
    for version, process in resolving.items():
        assert process.wait(timeout=280) == 0, (tmp_path / f"{version}.log").read_text()
        assert "apache-beam==" in (tmp_path / f"{version}.lock").read_text()


def resolve(version: str, folder: Path) -> subprocess.Popen[bytes]:
    """Begin to resolve what `make lock` resolves for 3.11."""
    words = (
        "pip",
        "compile",
        "pyproject.toml",
        "--extra",
        "plots",
        "--generate-hashes",
        "--no-header",
        "--quiet",
    )
    target = ("--python-version", version, "-o", str(folder / f"{version}.lock"))
    with (folder / f"{version}.log").open("wb") as log:
        return subprocess.Popen([uv(), *words, *target], cwd=ROOT, stdout=log, stderr=log)


@pytest.mark.soak
@pytest.mark.parametrize("version", LATER)
def test_later_pythons_run_the_demo(version: str, distributions: tuple[Path, Path], tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    assert resolve(version, tmp_path).wait(timeout=280) == 0, (tmp_path / f"{version}.log").read_text()
    check_installed(
        install(distributions[0], python, tmp_path / f"{version}.lock", tmp_path / "venv"), tmp_path
    )
