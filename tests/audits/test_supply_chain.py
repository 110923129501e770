"""What is installed is what was locked: hashes, pinned versions, a bill of materials; and the scanner."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.audits.audit_locks import LOCKS, pins, service_answers, unanswered

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BANDIT = ("-q", "-c", str(ROOT / "tests" / "audits" / "bandit.yaml"))
INSTALL = re.compile(r"\b(?:pip|uv) (?:pip )?(?:install|sync)\b[^\n]*")


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    entries = re.split(r"\n(?=\S)", text.replace("\\\n", ""))
    pinned = [entry for entry in entries if entry.strip() and not entry.startswith("#")]
    assert len(pinned) == len(pins(ROOT / name)) > 0
    for entry in pinned:
        assert re.match(r"[A-Za-z0-9._-]+==\S+", entry), entry[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]


def test_there_is_no_other_lock() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.lock"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    assert set(listed.stdout.split()) == set(LOCKS)


def commands() -> list[tuple[str, str]]:
    """Every install command of the Makefile, the images and the continuous integration."""
    files = [ROOT / "Makefile", ROOT / ".ci" / "run", *sorted((ROOT / "deploy").rglob("*Dockerfile"))]
    found = []
    for path in files:
        text = path.read_text().replace("\\\n", " ")
        found += [(path.name, match.group()) for match in INSTALL.finditer(text)]
    return found


def test_everything_is_installed_by_hash() -> None:
    """Or is this very package, without its dependencies and with a build that is installed already."""
    assert len(commands()) >= 10
    for place, command in commands():
        own = "--no-deps" in command and "--no-build-isolation" in command
        assert own or "--require-hashes" in command, f"{place}: {command}"


def test_that_check_can_fail() -> None:
    for command in ("python3 -m pip install requests", "uv pip sync requirements.lock"):
        found = INSTALL.search(command)
        assert found is not None
        assert "--require-hashes" not in found.group()


def test_the_bill_of_materials_names_every_pin(tmp_path: Path) -> None:
    """Valid CycloneDX; each component with the version and a hash of the lock."""
    out = tmp_path / "sbom.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", "pyproject.toml"),
            *("--output-reproducible", "--validate", "--of", "JSON", "-o", str(out), "requirements.lock"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bill = json.loads(out.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "evertally"
    listed = {part["name"]: part["version"] for part in bill["components"]}
    assert listed == pins(ROOT / "requirements.lock")
    for part in bill["components"]:
        (place,) = [ref for ref in part["externalReferences"] if ref["type"] == "distribution"]
        assert all(one["alg"] == "SHA-256" and len(one["content"]) == 64 for one in place["hashes"])


@pytest.mark.soak
def test_no_pin_is_known_to_be_vulnerable() -> None:
    if not service_answers():
        pytest.skip("this package index serves no vulnerability data")
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("audit_locks.py"))], check=False)
    assert done.returncode == 0


def test_an_unanswered_question_is_no_clean_bill() -> None:
    assert unanswered(None)
    assert unanswered([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}])
    assert not unanswered([{"name": "a", "version": "1", "vulns": []}])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("import hashlib\nhashlib.md5(b'x')\n", "B324"),
        ("import subprocess\nsubprocess.run('ls', shell=True)\n", "B602"),
        ("import tempfile\ntempfile.mktemp()\n", "B306"),
        ("def f(c, x):\n    c.execute('SELECT * FROM t WHERE a = ' + x)\n", "B608"),
        ("import ssl\nssl._create_unverified_context()\n", "B323"),
    ],
)
def test_the_scanner_finds_what_it_should(line: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    done = subprocess.run(
        [sys.executable, "-m", "bandit", *BANDIT, "-f", "json", str(tmp_path / "module.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert code in {one["test_id"] for one in json.loads(done.stdout)["results"]}


def test_every_exception_from_the_scanner_has_its_reason() -> None:
    for portion in ("counters", "accountants", "pipelines"):
        for path in (ROOT / portion).rglob("*.py"):
            for line in path.read_text().splitlines():
                if re.search(r"#\s*nosec", line):
                    assert re.search(r"# nosec B\d{3}  # \w+", line), f"{path}: {line.strip()}"
