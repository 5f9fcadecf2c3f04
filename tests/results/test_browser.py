"""Reports and the site in headless Chromium: console, requests, overflow, colours. Skipped where there is none."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from study_files import write_cells
from test_report import make_study

from fedjax_collapse.results import write_report

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MKDOCS = shutil.which("mkdocs", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
SECONDS = 120  # for an answer of the browser
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


class Chromium:
    """A headless browser, controlled through pipes by the DevTools protocol; ``problems`` checks a page."""

    def __init__(self, profile: Path) -> None:
        (requests, self.to), (self.answers, events) = os.pipe(), os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command = ["bash", "-c", f'exec "$@" 3<&{requests} 4>&{events}', "bash", BROWSER, *flags]
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(requests, events), **quiet)
        os.close(requests), os.close(events)
        self.read, self.number, self.events, self.session = b"", 0, [], {}
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params) -> dict:
        """Returns the result of a command."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": params} | self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        answer = self.wait(lambda message: message.get("id") == self.number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait(self, is_it) -> dict:
        """Returns the next message for which ``is_it``; all messages are added to ``events``."""
        end = time.monotonic() + SECONDS
        while True:
            while b"\0" not in self.read:
                ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
                part = os.read(self.answers, 1 << 16) if ready else b""
                assert part, "the browser has ended" if ready else "the browser does not answer"
                self.read += part
            line, _, self.read = self.read.partition(b"\0")
            self.events.append(message := json.loads(line))
            if is_it(message):
                return message

    def evaluate(self, script: str):
        return self("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def problems(self, page: Path) -> list[str]:
        """Returns what is wrong with a page in each width and scheme, its sections opened and its tables sorted."""
        self.events.clear()
        found = []
        for scheme in SCHEMES:
            self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            self("Page.navigate", url=page.as_uri())
            self.wait(lambda message: message.get("method") == "Page.loadEventFired")
            self.evaluate('document.querySelectorAll("details").forEach(it => it.open = true)')
            self.evaluate('document.querySelectorAll("table.results button").forEach(it => it.click())')
            for width in WIDTHS:
                size = dict(width=width, height=900, deviceScaleFactor=1, mobile=False)
                self("Emulation.setDeviceMetricsOverride", **size)
                wide, beyond, ink, paper = self.evaluate(MEASURE)
                if wide > width or beyond:
                    found.append(f"{page.name} is {wide} wide at {width}, {scheme}: {beyond}")
                if (ink > paper) != (scheme == "dark"):
                    found.append(f"{page.name} at {width} is not {scheme}")
        for event in self.events:
            text, params = json.dumps(event), event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    found.append(f"{page.name} asks for {url}")
            is_error = event.get("method") == "Runtime.exceptionThrown"
            is_error |= params.get("entry", {}).get("level") in ("error", "warning")
            if is_error or params.get("type") in ("error", "assert"):
                found.append(f"{page.name}: {text[:1000]}")
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to), os.close(self.answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("count", ARMS)
def test_the_report(count, browser, tmp_path):
    study = make_study(tmp_path / "study", arms=ARMS[count], seeds=2, rounds=6)
    assert not browser.problems(write_report(study))


def test_the_report_of_settings_and_a_papers_numbers(browser, tmp_path):
    assert not browser.problems(write_report(write_cells(tmp_path)))


@pytest.mark.skipif(not MKDOCS, reason="mkdocs is not installed")
def test_the_site(browser, tmp_path):
    command = [MKDOCS, "build", "--strict", f"--site-dir={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = sorted(page for page in tmp_path.rglob("*.html") if page.name != "404.html")  # for servers, from their root
    assert len(pages) > 30
    assert not [problem for page in pages for problem in browser.problems(page)]


@pytest.mark.parametrize(
    "body, words",
    [
        ("<p>as it should be", ""),
        ("<p style='width: 900px'>wide", "is 908 wide at 400"),
        ("<p style='overflow: hidden'><img style='margin-left: 500px' src='x.png'>", "ERR_FILE_NOT_FOUND"),
        ("<img src='http://localhost:9/x.png'>", "asks for http://localhost:9/x.png"),
        ("<script>undefined.x</script>", "TypeError"),
        ("<script>console.error('words')</script>", "words"),
        ("<style>body { background: #fff; color: #000 }</style>", "is not dark"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(body, words, browser, tmp_path):
    style = "<style>:root { color-scheme: light dark } body { background: Canvas; color: CanvasText }</style>"
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html>{style}{body}")
    found = browser.problems(tmp_path / "page.html")
    assert any(words in problem for problem in found) if words else not found
