"""The diagrams of docs/architecture.md are in step with the sources."""

from __future__ import annotations

import re

import pytest
from tests.docs.imports import BEGIN, END, PAGE, diagram, module_imports
from tests.docs.pages import blocks

NODE = re.compile(r'(\w+)\["([\w.]+)')
EDGE = re.compile(r"^\s*(\w+)(?:\[[^\]]*\])? (-->|-\.->) (\w+)")


def flows() -> list[tuple[str, str, str]]:
    """(module, arrow, module) of the hand-drawn diagrams."""
    text = PAGE.read_text("utf-8").partition(BEGIN)[0]
    names = dict(NODE.findall(text))
    found = [edge for line in text.splitlines() for edge in EDGE.findall(line)]
    return [(names[a], arrow, names[b]) for a, arrow, b in found]


@pytest.mark.slow
def test_every_arrow_of_the_flow_is_an_import() -> None:
    imports = module_imports()
    assert len(flows()) > 40
    for first, arrow, second in flows():
        assert {first, second} <= imports.keys(), f"{first} or {second} is no module"
        joined = second in imports[first] or first in imports[second]
        assert joined or arrow == "-.->", f"neither of {first} and {second} imports the other"


def test_the_packages_are_drawn_as_they_import() -> None:
    drawn = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert drawn == diagram(), "run `python -m tests.docs.imports`"


def test_diagrams_are_fences_of_mermaid() -> None:
    assert [block.language for block in blocks(PAGE)] == ["mermaid"] * 3
