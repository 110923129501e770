"""Which module of the product imports which, read from the sources, lazy imports included.

    python -m tests.docs.imports

rewrites the diagram of packages in docs/architecture.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT

__all__ = ["BEGIN", "END", "PAGE", "diagram", "module_imports"]

PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN: Final = "<!-- begin imports -->\n"
END: Final = "<!-- end imports -->"
_PORTIONS: Final = ("counters", "accountants", "pipelines")
# the deepest of these that a module's name begins with is its package; foundations are imported by all
_PACKAGES: Final = (
    *("counters", "counters.rivals"),
    *("accountants", "accountants.budget", "accountants.budget.service"),
    *("pipelines", "pipelines.local", "pipelines.kafka", "pipelines.beam", "pipelines.flink"),
    *("pipelines.metrics", "pipelines.training", "pipelines.cli", "testing"),
)
_FOUNDATIONS: Final = ("durable", "errors", "validation")


@cache
def module_imports() -> dict[str, frozenset[str]]:
    """Module (without the leading "evertally.") to the modules it imports."""
    paths = {
        ".".join(path.relative_to(ROOT / portion / "evertally").with_suffix("").parts): path
        for portion in _PORTIONS
        for path in (ROOT / portion / "evertally").rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: frozenset(_imported(path, modules) - {name}) for name, path in modules.items()}


def _imported(path: Path, modules: Iterable[str]) -> set[str]:
    known, found = set(modules), set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in (name.removeprefix("evertally.") for name in names if name.startswith("evertally.")):
            found.add(name if name in known else name.rpartition(".")[0])
    return found & known


def _package(module: str) -> str:
    inside = [one for one in _PACKAGES if module == one or module.startswith(one + ".")]
    return max(inside, key=len)


def diagram() -> str:
    """The packages and their imports as a Mermaid flowchart; an arrow leads from who imports."""
    edges = {
        (_package(module), _package(other))
        for module, others in module_imports().items()
        for other in others
        if module not in _FOUNDATIONS and other not in _FOUNDATIONS
    }
    lines = [f"    {_id(a)} --> {_id(b)}" for a, b in sorted(edges) if a != b]
    nodes = [f'    {_id(package)}["{package}"]' for package in _PACKAGES]
    return "\n".join(["```mermaid", "flowchart LR", *nodes, *lines, "```", ""])


def _id(package: str) -> str:
    return package.replace(".", "_")


def main() -> None:
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + diagram() + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
