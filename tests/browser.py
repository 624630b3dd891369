"""A page in a real browser, for tests of what a reader meets.

Needs Chromium and its driver: apt-get install chromium; pip install
'.[browser]'. A module of such tests has `pytestmark = browser.MARKS`.
"""

import contextlib
import shutil

import pytest

playwright = pytest.importorskip(
  "playwright.async_api", reason="pip install '.[browser]'"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE, DESK = 360, 1440
MARKS = [
  pytest.mark.slow,
  pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser; apt-get install chromium"
  ),
]


@contextlib.asynccontextmanager
async def opened(width: int):
  """Opens a browser's page of this width."""
  async with playwright.async_playwright() as driver:
    browser = await driver.chromium.launch(
      executable_path=CHROMIUM, args=["--no-sandbox"]
    )
    page = await browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(20_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on(
      "console",
      lambda m: page.errors.append(m.text) if m.type == "error" else None,
    )
    try:
      yield page
    finally:
      await browser.close()


async def sideways(page) -> int:
  """Returns by how many pixels the page is wider than the window."""
  root = "document.documentElement"
  return await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
