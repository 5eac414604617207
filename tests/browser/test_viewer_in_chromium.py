"""The viewer in a real headless Chromium: every page at both widths and themes, filters, keys, a growing run, hostile text."""

import os
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asked_episodes import made_grid
from viewed_runs import begin, hostile_run, whole_run

from rollbook.view.app import Door, application
from rollbook.view.shown import held_runs
from rollbook.view.site import write_site

pytestmark = pytest.mark.browser
PAGES = ("overview", "trajectories", "lineage", "evidence", "audit")
SIZES = ((1280, 900), (390, 844))


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "no Chromium: apt-get install chromium, or name one with CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Server:
    """The application on a free port, behind a token."""

    def __init__(self, *folders):
        import uvicorn
        self.runs = held_runs(list(folders))
        listening = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(application(self.runs, Door(token="t", hosts=frozenset({"127.0.0.1"}))),
                                                    log_level="error"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.should_exit = True
        self.thread.join(10)

    def row(self, key, **where):
        return self.runs[key].refresh().rows.where(*next(iter(where.items())))[-1]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browsed")
    whole_run(folder / "whole")
    whole_run(folder / "other")
    hostile_run(folder / "hostile")
    begin(folder / "empty").ledger.close()
    with ThreadPoolExecutor(1) as apart:            # Playwright's event loop runs in this thread
        grid = apart.submit(made_grid, folder).result()
    server = Server(*(folder / name for name in ("whole", "other", "hostile", "empty")), grid)
    yield server
    server.stop()


@pytest.fixture
def page(chromium, served):
    """A page that has entered, and what its console said."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    made.faults = []
    made.on("console", lambda message: made.faults.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: made.faults.append(str(error)))
    made.on("request", lambda sent: None if sent.url.startswith((served.base, "data:")) else made.faults.append(sent.url))
    made.goto(f"{served.base}/?token=t")
    assert "token" not in made.url
    yield made
    context.close()


def addresses(served, key):
    yield from (f"/run/{key}/{name}" for name in PAGES)
    if len(served.runs[key].refresh().rows):
        row = served.row(key, **({"stage": "rl"} if "." not in key else {"stop_reason": "end_of_turn"}))
        from rollbook.view.address import Address
        for name, what in (("trajectory", "id"), ("group", "group"), ("task", "task")):
            yield Address(page=name, run=key, name=row[what]).url


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_its_window_and_says_nothing_on_the_console(chromium, served, page, size, theme):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=theme)
    for key in ("whole", "other", "hostile", "empty", "out.after.whole"):
        for path in (*addresses(served, key), "/", "/compare", "/grid?id=out"):
            page.goto(served.base + path)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (path, size)
            assert page.locator("h1").count() == 1, path
            assert page.evaluate("window.attacked") is None, path
            ground, ink = page.evaluate("(style => [style.backgroundColor, style.color])(getComputedStyle(document.body))")
            assert contrast(ground, ink) > 7, (path, theme)
    assert not page.faults


def contrast(one, other):
    def light(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_filters_are_in_the_address_and_the_address_brings_them_back(page, served):
    page.goto(served.base + "/run/whole/trajectories")
    page.select_option("select[name=stage]", "rl")
    page.wait_for_url("**stage=rl*")
    page.select_option("select[name=outcome]", "uniform")
    page.wait_for_url("**outcome=uniform*")
    assert page.locator("#count").inner_text().startswith("16 of 62")
    assert "version" not in page.url
    page.keyboard.press("/")
    page.keyboard.type("nothing like this")
    page.keyboard.press("Enter")
    page.wait_for_url("**text=nothing*")
    assert page.locator("#count").inner_text().startswith("0 of 62")
    page.goto(served.base + "/run/whole/trajectories?outcome=uniform&stage=rl")
    assert page.locator("select[name=outcome]").input_value() == "uniform" and not page.faults


def test_a_reader_gets_by_with_the_keyboard_alone(page, served):
    page.goto(served.base + "/run/whole")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/trajectories*")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.locator("tr.here").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url("**/trajectory?*")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    before = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") != before
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark") and not page.faults


def test_a_grids_effects_are_whole_on_a_narrow_screen(page, served):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(served.base + "/grid?id=out")
    ends = "[...document.querySelectorAll('.stacked td')].map(one => one.getBoundingClientRect().right)"
    right = page.evaluate(f"Math.max(...{ends})")
    assert 0 < right <= 390 and page.locator(".stacked td[data-of=claim]").count()


def test_a_run_that_grows_is_drawn_again_without_a_reload(chromium, tmp_path):
    writer = begin(tmp_path / "growing")
    server = Server(tmp_path / "growing")
    try:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(f"{server.base}/run/growing?token=t")
        assert page.get_by_text("No training step is on record yet.").count() == 1
        page.wait_for_timeout(2500)                     # the first look at the log
        writer.step(1)
        page.wait_for_selector("body[data-drawn]", timeout=20_000)
        assert page.get_by_text("1 policy steps on record").count() == 1
        other = context.new_page()
        other.goto(f"{server.base}/run/growing/trajectories")
        assert other.locator("#count").inner_text().startswith("16 of 16")
        other.wait_for_timeout(2500)
        writer.step(2)
        other.wait_for_selector("#news:not([hidden])", timeout=20_000)
        other.locator("#news a").click()
        assert other.locator("#count").inner_text().startswith("32 of 32")
        context.close()
    finally:
        writer.ledger.close()
        server.stop()


def test_the_pages_open_from_disk(chromium, served, tmp_path):
    write_site([served.runs["whole"].root, served.runs["hostile"].root], tmp_path / "site")
    context = chromium.new_context(offline=True)
    page = context.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto((tmp_path / "site" / "index.html").as_uri())
    page.get_by_role("link", name="whole").first.click()
    page.get_by_role("link", name="Trajectories", exact=True).click()
    page.locator("a.row-link").first.click()
    assert page.locator("h1").inner_text() and page.locator(".tokens.policy").count() >= 1
    page.goto((tmp_path / "site" / "hostile-trajectories.html").as_uri())
    assert page.evaluate("window.attacked") is None and not faults
    context.close()


def test_a_stranger_sees_nothing(chromium, served):
    page = chromium.new_context().new_page()
    assert page.goto(f"{served.base}/run/whole").status == 401 and "Rollbook /" not in page.content()
