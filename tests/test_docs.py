"""The documentation: its links lead somewhere, its code runs, its commands and messages are those of the code."""

import re
from pathlib import Path

import pytest

from experiments.configs import base

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
TESTED_ELSEWHERE = ("README.md", "extending.md")  # tests/test_readme.py
SOURCES = "\n".join(
    path.read_text() for room in ("fedjax_collapse", "experiments") for path in (ROOT / room).rglob("*.py")
)
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """Code of that language, and whether it is marked as not to be run."""
    return [(code, bool(mark)) for mark, found, code in BLOCK.findall(page.read_text()) if found == language]


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`]*`", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert not target.startswith("/")
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.is_file(), target
            assert not anchor or anchor in anchors(linked), target


def test_every_page_is_in_the_index_of_the_site():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"[\w/]+\.md", text))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in DOCS}
    assert "\n  font: false\n" in text  # else a page asks for fonts from elsewhere


@pytest.mark.parametrize("page", [page for page in DOCS if page.name not in TESTED_ELSEWHERE], ids=name)
def test_python_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"config": base.get_config()}
    for code, is_marked in blocks(page, "python"):
        if not is_marked:
            exec(compile(code, name(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_name_programs_and_configs_that_are_there(page):
    commands = re.findall(r"experiments/[\w/]+\.\w+", page.read_text())
    missing = {command for command in commands if not (ROOT / command).exists()}
    assert not missing
    for option in re.findall(r"experiments/launch\.py[^`\n]*", page.read_text()):
        for flag in re.findall(r" --(\w+)", option):
            assert flag in ("config", "help") or f'"{flag}"' in SOURCES, flag


def test_messages_of_the_troubleshooting_page_are_said():
    """Each quoted message, but for what stands at its dots, is text of the code."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert len(rows) >= 12
    plain = re.sub(r'"\n\s+f?"', "", SOURCES)
    for message in re.findall(r"`([^`]+)`", "\n".join(rows)):
        for part in filter(None, map(str.strip, message.split("..."))):
            assert part.strip(" :,") in plain, message
