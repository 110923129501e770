"""Make docs/demo.png, the picture of README.md: what `evertally demo` draws, under the examples' noise.

python -m tests.docs.make_picture
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.shell import Shell


def main() -> None:
    with tempfile.TemporaryDirectory() as name, Shell(Path(name)) as shell:
        status, said = shell.run("evertally demo --json")
        assert status == 0, said
        shutil.copy(Path(name) / "evertally-demo" / "totals.png", ROOT / "docs" / "demo.png")


if __name__ == "__main__":
    main()
