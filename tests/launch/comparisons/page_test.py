"""The page of a comparison in a real browser.

Needs what `tests.browser` needs.
"""

import pathlib
import tempfile
import unittest

from launch.comparisons.page import compare, render, verdicts
from launch.comparisons.runs import read_arms
from tests import browser
from tests.browser import DESK, PHONE, opened, sideways
from tests.launch.comparisons.report_test import make_run

pytestmark = browser.MARKS
LONG = "an_arm_with_a_name_that_is_long_and_has_no_place_to_break_" * 2


class PageTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    super().setUp()
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for place, arm in enumerate(("a", "b", "<i>c", "d", LONG)):
      for seed in range(3):
        make_run(
          root / f"{arm}-s{seed}",
          seed=seed,
          success=0.5 + place / 50 + seed / 100,
          changes={"clip_high": 0.2 + place / 10},
        )
    self.page = root / "report.html"
    self.compared = compare("t", read_arms(sorted(root.iterdir())))
    self.page.write_text(render(self.compared), encoding="utf-8")

  async def test_differences_come_first_and_tables_are_folded(self):
    async with opened(DESK) as page:
      await page.goto(self.page.as_uri())
      headings = await page.locator("h2").all_inner_texts()
      self.assertEqual(headings[:3], ["Differences", "Curves", "Finals"])
      table = page.locator("#finals table").first
      self.assertFalse(await table.is_visible())
      for sentence in verdicts(self.compared):  # as in the terminal
        self.assertTrue(await page.get_by_text(sentence).is_visible())
      await page.get_by_text("Tables of levels and differences").click()
      self.assertTrue(await table.is_visible())
      self.assertEqual(page.errors, [])

  async def test_nothing_sticks_out(self):
    for width in (PHONE, DESK):
      async with opened(width) as page:
        await page.goto(self.page.as_uri())
        self.assertEqual(await sideways(page), 0, width)
        for summary in await page.locator("summary").all():
          await summary.click()
        self.assertEqual(await sideways(page), 0, width)
        self.assertEqual(await page.locator("main i").count(), 0)
        self.assertEqual(page.errors, [])
