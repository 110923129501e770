"""Every page is played as a reader would; links, commands and options named in the pages exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.commands import known_options
from tests.docs.pages import ROOT, blocks, pages, same
from tests.docs.play import play

WITH_KAFKA = [page for page in pages() if any(block.needs == "kafka" for block in blocks(page))]
PLAYED = [page for page in pages() if page not in WITH_KAFKA and any(block.runs for block in blocks(page))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
# a command as a shell would see it, in a fence or between backticks
CALL = re.compile(r"(?:^|[\s`(])(?:\.venv/bin/)?evertally((?: [a-z][a-z-]*)+)([^\n`|>]*)")
OPTION = re.compile(r"(?<=\s)(--[a-z][a-z-]*|-[a-z])\b")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.timeout(900)  # a page is a few seconds of work; neighbours on the machine are not
@pytest.mark.parametrize("page", PLAYED, ids=name)
def test_every_output_is_what_the_commands_print(page: Path, tmp_path: Path) -> None:
    differences = play(page, tmp_path)
    assert not differences, "\n\n".join(map(str, differences))


@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", WITH_KAFKA, ids=name)
def test_every_output_with_a_broker(page: Path, tmp_path: Path, kafka_jars: Path) -> None:
    differences = play(page, tmp_path, "kafka")
    assert not differences, "\n\n".join(map(str, differences))


def test_a_wrong_output_and_a_failing_command_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo 2\n3\n$ false\n$ echo one; echo two\n...\ntwo\n$ (exit 3)\n$ echo $?\n3\n```\n"
    )
    assert [one.reason for one in play(page, tmp_path)] == ["another output", "exit status 1"]


def test_prompts_stand_in_fences_that_are_played() -> None:
    left_out = []
    for page in pages():
        for block in blocks(page):
            if block.language != "console":
                assert not any(line.startswith("$ ") for line in block.lines), f"{name(page)}:{block.line}"
            elif not block.runs:
                left_out.append(block.marks["not run"].partition(":")[0])
    assert left_out == [
        "an installation of its own; tests/packaging does it",
        "an installation of its own; the suite for training has it",
    ]


def test_outputs_in_shape() -> None:
    assert same(["total 17, error 2.5"], ["total -1,204, error 3"], shape=True)
    assert not same(["total 17"], ["totals 17"], shape=True)
    assert same(["port ..."], ["port 81"], shape=False)
    assert not same(["port 80"], ["port 81"], shape=False)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), f"{name(page)}: {target}"
        if anchor:
            assert anchor in _anchors(aim), f"{name(page)}: {target}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    for words, rest in CALL.findall(re.sub(r" \\\n\s*(?:> )?", " ", _code(page))):
        command, options = known_options(words.split())
        assert command, f"{name(page)}: evertally{words}"
        for option in OPTION.findall(rest.split(" -- ")[0]):
            assert option in options, f"{name(page)}: evertally{words} {option}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        relative = page.relative_to(ROOT / "docs").as_posix()
        assert relative == "README.md" or f"({relative})" in index, relative


def _code(page: Path) -> str:
    """Fences and code spans, one a line."""
    text = page.read_text("utf-8")
    fences = re.findall(r"^```.*?^```", text, flags=re.S | re.M)
    return "\n".join([*fences, *re.findall(r"`([^`\n]+)`", text)])


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.M)
    plain = (re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}
