"""The page in a real Chromium: no script errors, nothing loaded from outside, readable on a phone and in the dark."""

import shutil

import pytest

from derl_gym.report import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path"),
]
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET += ("--disable-background-networking", "--disable-component-update", "--disable-sync")
GROUPS = [("g1", "g1+0.5*g2", "g1/g2", "g1+"), ("g1+g2", "g1*g2*g3", "0-g1", "g1/(g2+1)**2")]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    contexts = []

    def opened(path, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page, page.noise = context.new_page(), []
        page.on("console", lambda message: page.noise.append(message.text))
        page.on("pageerror", lambda error: page.noise.append(str(error)))
        page.on("dialog", lambda dialog: (page.noise.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: page.noise.append(request.url) if request.url[:5] != "file:" else None)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


def drawn(page):
    """Plots with at least one path or bar in them."""
    return page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.querySelector('.trace, .point')).length"
    )


def test_a_comparison(tmp_path, write_search, open_page):
    for agent in ("random", "derl"):
        for seed in (0, 1):
            write_search(tmp_path / f"{agent}-{seed}", agent, seed, groups=GROUPS)
    page = open_page(write_report([tmp_path], tmp_path / "report.html"))
    assert page.noise == []
    assert drawn(page) == 6  # best so far, profiles, scores, structures, learning curves, cost
    assert page.locator("article math").count() > 3 and page.locator("article math").first.bounding_box()["width"] > 20
    assert page.locator(".modebar-btn").count() == 0
    assert page.locator("table").first.locator("tr").count() == 3


def test_hovering_shows_the_programs(tmp_path, write_search, open_page):
    write_search(tmp_path, groups=GROUPS)
    page = open_page(write_report([tmp_path], tmp_path / "report.html"))
    point = page.locator(".js-plotly-plot").first.locator(".points path").first.bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    label = page.locator(".js-plotly-plot").first.locator(".hovertext")
    label.wait_for()
    assert "g1+0.5*g2" in label.text_content() and page.noise == []


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_a_search_that_has_just_begun(tmp_path, write_search, open_page, groups):
    write_search(tmp_path, groups=groups, waiting=8 if groups else 0)
    page = open_page(write_report([tmp_path], tmp_path / "report.html"))
    assert page.noise == [] and page.get_by_text("No outer step is complete yet").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_text_is_readable_and_fits(tmp_path, write_search, open_page, width, scheme):
    write_search(tmp_path, groups=GROUPS)
    page = open_page(write_report([tmp_path], tmp_path / "report.html"), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector, colour in (("h1", "color"), (".js-plotly-plot .xtick text", "fill")):
        ratio = page.evaluate(CONTRAST, [selector, colour])
        assert ratio > 4.5, f"{selector} has contrast {ratio:.1f} in {scheme} mode"


CONTRAST = """([selector, property]) => {
  const light = text => text.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const element = document.querySelector(selector);
  const card = document.querySelector(selector === "h1" ? "body" : "section");
  const pair = [getComputedStyle(element)[property], getComputedStyle(card).backgroundColor].map(light);
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


def test_evil_text_does_nothing(tmp_path, write_search, open_page):
    evil = '<img src=x onerror="alert(1)"><a href="javascript:alert(2)">x</a></script><script>alert(3)</script>'
    write_search(tmp_path, agent=evil, groups=[(evil, "g1"), ("g2", evil)], spoil=evil)
    page = open_page(write_report([tmp_path], tmp_path / "report.html"))
    assert page.noise == [] and page.locator("img").count() == 0
    assert page.locator("a[href^=javascript]").count() == 0
