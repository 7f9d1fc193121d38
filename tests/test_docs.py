"""The README and the pages of `docs/` keep what they show: examples run, commands and links exist, no figure is open.

Each page is followed as a reader would: its ```bash and ```python blocks in order, in one empty folder. A block is only
parsed when an HTML comment right before it says `parsed only:` and why. Of other commands than `overtone` (make,
the benchmarks) it is checked that what they name exists.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from command_line import CommandLine
from overtone.cli.application import application

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

LANGUAGES = {"bash", "python", "text"}
PARSED_ONLY = re.compile(r"<!-- parsed only: \S.* -->")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Args:
        line: Number of its first line, from 1.
        run: Whether to run it, and not only to parse it.
    """

    page: Path
    line: int
    language: str
    text: str
    run: bool

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page; one in an unknown language, or without an end, fails the test."""
    found: list[Block] = []
    body: list[str] = []
    language, start, before = None, 0, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is None and line.startswith("```"):
            language, body, start = line[3:].strip(), [], number + 1
            assert language in LANGUAGES, f"{page.name}:{number}: a block of {language!r}"
        elif language is not None and line.startswith("```"):
            run = PARSED_ONLY.fullmatch(before) is None
            found.append(Block(page, start, language, "\n".join(body) + "\n", run))
            language, before = None, ""
        elif language is not None:
            body.append(line)
        else:
            assert "```" not in line, f"{page.name}:{number}: a block that does not begin the line"
            before = line
    assert language is None, f"{page.name}:{start}: a block without an end"
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command of a bash block: environment, then words."""

    block: Block
    environment: dict[str, str]
    words: list[str]

    def __str__(self) -> str:
        return f"{self.block}: {shlex.join(self.words)}"


def commands(block: Block) -> list[Command]:
    """The commands of a bash block."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        environment = {}
        while words and ASSIGNMENT.fullmatch(words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if words[:3] == ["python", "-m", "overtone"]:
            words[:3] = ["overtone"]
        if words:
            found.append(Command(block, environment, words))
    assert found, f"{block}: no command"
    return found


def parse_overtone(command: Command) -> None:
    """Parse the options of an `overtone` command, as the command itself does."""
    _, name, *arguments = command.words
    subcommand = application.commands.get(name)
    assert subcommand is not None, f"{command}: no such subcommand"
    try:
        subcommand.make_context(name, arguments)
    except click.ClickException as error:
        pytest.fail(f"{command}: {error.format_message()}")


def check_benchmark(command: Command) -> None:
    """A benchmark is there and describes the options that are given."""
    shown = subprocess.run(
        [sys.executable, *command.words[1:3], "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert shown.returncode == 0, f"{command}: {shown.stderr}"
    for word in command.words[3:]:
        assert not word.startswith("--") or word in shown.stdout, f"{command}: no {word}"


def check_other(command: Command) -> None:
    """What a command other than `overtone` names exists."""
    match command.words:
        case ["make", *targets]:
            known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            assert set(targets) <= set(known), command
        case ["python", "-m", module, *_] if module.startswith("benchmarks."):
            check_benchmark(command)
        case _:
            pytest.fail(f"{command}: a command that this test does not know")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overtone = CommandLine(capsys)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            # Empty lines in front, so that a traceback names the line of the page.
            code = compile("\n" * (block.line - 1) + block.text, page, "exec")
            if block.run:
                exec(code, namespace)
        elif block.language == "bash":
            for command in commands(block):
                if command.words[0] != "overtone":
                    check_other(command)
                    continue
                parse_overtone(command)
                if block.run:
                    with monkeypatch.context() as patch:
                        for name, value in command.environment.items():
                            patch.setenv(name, value)
                        outcome = overtone(*command.words[1:])
                    assert outcome.code == 0, f"{command}: {outcome.err}"


def test_every_subcommand_is_shown_in_the_readme() -> None:
    shown = {
        command.words[1]
        for block in blocks(PAGES[0])
        if block.language == "bash"
        for command in commands(block)
        if command.words[0] == "overtone"
    }
    assert shown == set(application.commands)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_options_that_a_page_mentions_exist(page: Path) -> None:
    known = {option for command in application.commands.values() for each in command.params for option in each.opts}
    code = [span for span in re.findall(r"`([^`]+)`", prose(page)) if not span.startswith("pip ")]
    mentioned = set(re.findall(r"--[a-z-]+", " ".join(code)))
    assert mentioned <= known


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts derive them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_leads_to_every_page() -> None:
    links = set(re.findall(r"\]\(([^)\s#]+)", prose(PAGES[0])))
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= links


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_figure_is_left_open(page: Path) -> None:
    assert re.findall(r"@@\w+@@", page.read_text(encoding="utf-8")) == []
