"""Every check of deploy/ that needs no container engine and no cluster: `make lint-deploy`.

A tool that is missing is said; with CI=true it is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = Path(sys.executable).parent
KUSTOMIZE = Path.home() / ".cache" / "evertally" / "kustomize" / "5.6.0" / "kustomize"
KUBERNETES = ("1.31", "1.36")


class MissingTool(Exception):
    """A checker is not installed."""


def tool(name: str) -> str:
    """A program of this environment, or of the machine."""
    own = BIN / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        raise MissingTool(name)
    return found


def run(*words: str, text: str | None = None, cwd: Path = ROOT) -> str:
    """Run a checker; its output where it is content."""
    done = subprocess.run(
        words, input=text, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def paths(*patterns: str) -> list[str]:
    """Files below deploy/, as text."""
    found = sorted(str(path) for pattern in patterns for path in HERE.glob(pattern))
    assert found, patterns
    return found


def dockerfiles() -> None:
    """Hadolint."""
    run(
        tool("hadolint"), "-c", str(HERE / ".hadolint.yaml"), *paths("images/*.Dockerfile", "beam/Dockerfile")
    )


def compose() -> None:
    """The compose schema, and compose-lint from `high` on."""
    file = str(HERE / "compose" / "compose.yaml")
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", file)
    run(tool("compose-lint"), "check", file)


def yaml() -> None:
    """Yamllint."""
    run(tool("yamllint"), "--strict", "-c", str(HERE / ".yamllint.yml"), str(HERE))


def rendered(overlay: str) -> str:
    """An overlay, as kustomize renders it."""
    folder = str(HERE / "kubernetes" / "overlays" / overlay)
    if shutil.which("kubectl") is not None:
        return run("kubectl", "kustomize", folder)
    if KUSTOMIZE.exists():
        return run(str(KUSTOMIZE), "build", folder)
    raise MissingTool("kubectl or kustomize")


def kubernetes() -> None:
    """Each overlay rendered, and every object against the schemas of three versions."""
    validate = tool("kubernetes-validate")
    for overlay in ("dev", "production"):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{overlay}.yaml"
            file.write_text(rendered(overlay), "utf-8")
            for version in KUBERNETES:
                run(validate, "--strict", "--quiet", "-k", version, str(file))


def shell() -> None:
    """ShellCheck."""
    run(tool("shellcheck"), str(ROOT / ".ci" / "run"))


def prometheus() -> None:
    """Configuration, rules, and the rules' unit tests."""
    promtool = tool("promtool")
    run(promtool, "check", "rules", *paths("prometheus/rules/*.yml"))
    run(promtool, "test", "rules", *paths("prometheus/tests/*.yml"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "prometheus"
        shutil.copytree(HERE / "prometheus", copy)
        (copy / "secrets").mkdir()
        for name in re.findall(r"secrets/([\w-]+)", (copy / "prometheus.yml").read_text("utf-8")):
            (copy / "secrets" / name).write_text("token", "utf-8")
        run(promtool, "check", "config", str(copy / "prometheus.yml"))


def alertmanager() -> None:
    """Amtool."""
    run(tool("amtool"), "check-config", str(HERE / "alertmanager" / "alertmanager.yml"))


def dashboards() -> None:
    """The kept dashboards are what the script writes."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, str(HERE / "grafana" / "generate.py"), folder)
        kept = {path.name: path.read_text("utf-8") for path in (HERE / "grafana" / "dashboards").iterdir()}
        written = {path.name: path.read_text("utf-8") for path in Path(folder).iterdir()}
    if kept != written:
        raise AssertionError("run `python deploy/grafana/generate.py`: the dashboards are out of step")


def units() -> None:
    """systemd-analyze; the program itself need not be installed here."""
    analyse = tool("systemd-analyze")
    with tempfile.TemporaryDirectory() as folder:
        for path in paths("systemd/*.service"):
            copy = Path(folder) / Path(path).name.replace("@.", "@visits.")
            text = Path(path).read_text("utf-8")
            copy.write_text(text.replace("/opt/evertally/bin/evertally", "/bin/true"), "utf-8")
            run(analyse, "verify", "--man=no", str(copy))


CHECKS: Sequence[Callable[[], None]] = (
    dockerfiles,
    compose,
    yaml,
    kubernetes,
    shell,
    prometheus,
    alertmanager,
    dashboards,
    units,
)


def main() -> int:
    """Run every check; how many failed."""
    failed = 0
    for check in CHECKS:
        try:
            check()
        except MissingTool as missing:
            strict = os.environ.get("CI", "").lower() == "true"
            failed += strict
            print(f"{'FAILED' if strict else 'skipped'} {check.__name__}: {missing} is not installed")
        except AssertionError as error:
            failed += 1
            print(f"FAILED {check.__name__}: {error}")
        else:
            print(f"ok {check.__name__}")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
