"""Reports and the site in headless Chromium: console, requests, overflow, colours. Skipped where there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cases
from study_files import write_cells
from test_report import make_study
from unrendered import ROOT

from fedjax_collapse.results import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MKDOCS = shutil.which("mkdocs", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
WIDTHS, SCHEMES = (400, 1400), ("light", "dark")
METHODS = ("fedavg", "fedprox", "fedproc", "fednova", "moon", "feddyn", "feddc", "fedmr", "scaffold", "fedavgm")
ARMS = {
    2: ("fedavg", "feddecorr"),
    8: METHODS[:8],
    20: [*METHODS, *(f"{name}_decorr strength=0.1" for name in METHODS)],
}
# returns the width of the page, elements beyond the window that are in no box of their own, and mean colours out of 255
MEASURE = """(() => {
  for (const moving of document.getAnimations()) try { moving.finish() } catch {}
  const boxed = e => e !== document.body && (getComputedStyle(e).overflowX !== "visible" || boxed(e.parentElement));
  const beyond = [...document.body.querySelectorAll("*")].filter(e =>
    e.getBoundingClientRect().right + scrollX > innerWidth + 1 && !boxed(e.parentElement));
  const style = getComputedStyle(document.body);
  const level = name => style[name].match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + +b / 3, 0);
  return [document.documentElement.scrollWidth, beyond.slice(0, 3).map(e => e.outerHTML.slice(0, 120)),
          level("color"), level("backgroundColor")];
})()"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BROWSER, reason="no Chromium or Chrome is installed")]


def problems_in(browser, path: Path, scheme: str) -> list[str]:
    """Returns what is wrong with a page in each width, its sections opened and its tables sorted."""
    page, found = browser.new_page(color_scheme=scheme), []

    def note(what, is_wrong=True):
        if is_wrong:
            found.append(f"{path.name}, {scheme}: {what}")

    page.on("request", lambda of: note(f"asks for {of.url}", not of.url.startswith(("file:", "data:", "blob:"))))
    page.on("pageerror", note)
    page.on("console", lambda said: note(said.text, said.type in ("error", "warning", "assert")))
    page.goto(path.as_uri())
    page.evaluate('document.querySelectorAll("details").forEach(it => it.open = true)')
    page.evaluate('document.querySelectorAll("table.results button").forEach(it => it.click())')
    for width in WIDTHS:
        page.set_viewport_size(dict(width=width, height=900))
        wide, beyond, ink, paper = page.evaluate(MEASURE)
        note(f"is {wide} wide at {width}: {beyond}", wide > width or beyond)
        note(f"at {width} is not {scheme}", (ink > paper) != (scheme == "dark"))
    page.close()
    return found


@pytest.fixture(scope="module")
def problems():
    """A function that returns what is wrong with a page in each scheme."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield lambda page: [problem for scheme in SCHEMES for problem in problems_in(browser, page, scheme)]
        browser.close()


@pytest.mark.parametrize("count", ARMS)
def test_report_has_no_problems(count, problems, tmp_path):
    study = make_study(tmp_path / "study", arms=ARMS[count], seeds=2, rounds=6)
    assert not problems(write_report(study))


def test_report_of_settings_and_a_papers_numbers_has_no_problems(problems, tmp_path):
    assert not problems(write_report(write_cells(tmp_path)))


@pytest.mark.skipif(not MKDOCS, reason="mkdocs is not installed")
def test_site_has_no_problems(problems, tmp_path):
    command = [MKDOCS, "build", "--strict", f"--site-dir={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = sorted(page for page in tmp_path.rglob("*.html") if page.name != "404.html")  # for servers, from their root
    assert len(pages) > 30
    assert not [problem for page in pages for problem in problems(page)]


@cases(
    ("<p>as it should be", ""),
    ("<p style='width: 900px'>wide", "is 908 wide at 400"),
    ("<p style='overflow: hidden'><img style='margin-left: 500px' src='x.png'>", "ERR_FILE_NOT_FOUND"),
    ("<img src='http://localhost:9/x.png'>", "asks for http://localhost:9/x.png"),
    ("<script>undefined.x</script>", "Cannot read properties of undefined"),
    ("<script>console.error('words')</script>", "words"),
    ("<style>body { background: #fff; color: #000 }</style>", "is not dark"),
)
def test_problems_of_a_page_are_found(body, words, problems, tmp_path):
    style = "<style>:root { color-scheme: light dark } body { background: Canvas; color: CanvasText }</style>"
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html>{style}{body}")
    found = problems(tmp_path / "page.html")
    assert any(words in problem for problem in found) if words else not found
