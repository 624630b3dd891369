"""The page in a real browser, as a reader meets it.

Needs what `tests.browser` needs.
"""

import contextlib
import pathlib
import tempfile
import unittest

from launch.viewing.server import Viewer, write_file
from tests import browser
from tests.browser import DESK, PHONE, opened, sideways
from tests.launch.reports import html_test
from tests.launch.viewing.a_run import HOSTILE, add_update, make_run
from tests.launch.viewing.server_test import served

pytestmark = browser.MARKS


class PageTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = make_run(pathlib.Path(folder.name) / "a", updates=2)
    self.url = await self.enterAsyncContext(served(self.folder.root))

  async def test_from_the_list_to_a_trajectory_and_its_group(self):
    async with opened(DESK) as page:
      await page.goto(self.url)
      await page.get_by_label("task", exact=True).select_option("webshop")
      await page.get_by_label("outcome").select_option("failure")
      await page.get_by_text("4 of 13 trajectories").wait_for()
      await page.get_by_role("link", name="webshop 101, attempt 1").click()
      await page.get_by_text("commit_final_answer").wait_for()
      await page.get_by_role("link", name="next").click()
      await page.get_by_role("heading", name="attempt 2").wait_for()
      self.assertIn("task limit reached", await page.inner_text("main"))
      await page.get_by_role("link", name="side by side").click()
      await page.get_by_text("They part at message 7").wait_for()
      self.assertEqual(await page.locator(".columns > section").count(), 3)
      await page.get_by_role("link", name="list").click()
      await page.get_by_text("4 of 13 trajectories").wait_for()
      self.assertEqual(page.errors, [])

  async def test_tokens_are_coloured_on_demand(self):
    async with opened(DESK) as page:
      await page.goto(f"{self.url}/#/t/000001.0.0")
      shown = page.get_by_label("show")
      await shown.wait_for()
      self.assertEqual(await page.locator(".tokens span[title]").count(), 0)
      for colour in ("trained", "probability", "sampler", "version"):
        await shown.select_option(colour)
        await page.locator(".tokens span[title]").first.wait_for()
        spans = page.locator(".tokens span[title]")
        self.assertEqual(await spans.count(), 3 * 14)  # sampled ones alone
      await spans.first.click()
      self.assertIn("version 12", await page.inner_text("#hint"))
      for colour, kind, hint in (
        ("learner", "up-2", "ratio 1.350"),
        ("advantage", "up-2", "advantage 1.25"),
      ):
        await shown.select_option(colour)
        spans = page.locator(f".tokens span.{kind}[title]")
        await spans.first.wait_for()
        self.assertEqual(await spans.count(), 3 * 14)
        await spans.first.click()
        self.assertIn(hint, await page.inner_text("#hint"))
      await page.goto(f"{self.url}/#/t/000001.0.2")  # it was not trained on
      await page.get_by_text("The learner computed nothing here").wait_for()
      self.assertEqual(page.errors, [])

  async def test_text_of_a_policy_is_never_markup(self):
    async with opened(DESK) as page:
      for view in ("t/000001.0.0", "g/000001.0"):
        await page.goto(f"{self.url}/#/{view}")
        await page.get_by_text("onerror").first.wait_for()
        self.assertIn(HOSTILE, await page.inner_text("main"))
        self.assertEqual(await page.title(), "a")
        self.assertEqual(await page.locator("main img, main script").count(), 0)
      self.assertEqual(page.errors, [])

  async def test_follows_the_run_and_outlives_the_server(self):
    async with contextlib.AsyncExitStack() as stack:
      page = await stack.enter_async_context(opened(DESK))
      async with served(self.folder.root) as url:
        await page.goto(url)
        await page.get_by_text("13 of 13 trajectories").wait_for()
        add_update(self.folder, 2)
        await page.get_by_text("19 of 19 trajectories").wait_for()
      await page.get_by_text("The server does not answer").wait_for()
      port = int(url.rpartition(":")[2])
      await stack.enter_async_context(served(self.folder.root, port))
      await page.locator("#trouble").wait_for(state="hidden")
      self.assertIn("19 of 19 trajectories", await page.inner_text("main"))

  async def test_one_file_shows_the_same_without_a_server(self):
    path = self.folder.root / "page.html"
    write_file(Viewer(self.folder.root), path)
    async with opened(PHONE) as page:
      await page.goto(path.as_uri())
      await page.get_by_text("13 of 13 trajectories").wait_for()
      await page.get_by_role("link", name="dbbench 101, attempt 0").click()
      await page.get_by_text("commit_final_answer").wait_for()
      await page.get_by_role("link", name="Curves").click()
      await page.get_by_role("heading", name="Success by task").wait_for()
      self.assertEqual(page.errors, [])

  async def test_a_report_shows_episodes_and_fits_a_phone(self):
    path = self.folder.root / "report.html"
    path.write_text(html_test.render(), encoding="utf-8")
    for width in (PHONE, DESK):
      async with opened(width) as page:
        await page.goto(f"{path.as_uri()}#curves")
        await page.get_by_role("link", name="dbbench 17, attempt 0").click()
        await page.get_by_text("commit_final_answer").wait_for()
        self.assertEqual(await sideways(page), 0, width)
        await page.get_by_role("link", name="list").click()
        await page.get_by_text("1 of 1 trajectories").wait_for()
        self.assertEqual(page.errors, [])

  async def test_nothing_sticks_out_and_all_is_reached_by_keys(self):
    for width in (PHONE, DESK):
      async with opened(width) as page:
        for view in ("", "t/000001.0.0", "g/000001.0", "curves"):
          await page.goto(f"{self.url}/#/{view}")
          await page.locator(
            "main h2, main table, main figure"
          ).first.wait_for()
          self.assertEqual(await sideways(page), 0, (width, view))
          heights = await page.eval_on_selector_all(
            "main tbody tr", "rows => rows.map((row) => row.offsetHeight)"
          )
          self.assertLess(max(heights, default=0), 80, width)  # three lines
          await page.get_by_text("training episodes, sampled: ").wait_for()
    async with opened(DESK) as page:
      await page.goto(f"{self.url}/#/")
      await page.locator("main table").wait_for()
      for _ in range(40):
        await page.keyboard.press("Tab")
        focused = await page.evaluate("document.activeElement.textContent")
        if focused.startswith("dbbench 101, attempt 1"):
          break
      await page.keyboard.press("Enter")
      await page.get_by_role("heading", name="attempt 1").wait_for()
