"""The page of a controller in a real browser, as an operator meets it.

Needs what `tests.browser` needs.
"""

import contextlib
import functools

from agentrl_jax.service.controller import main as service
from agentrl_jax.service.controller.main import ServiceConfig
from tests import browser
from tests.browser import DESK, PHONE, opened, sideways
from tests.clocks import until
from tests.service.controller.fuzzing import TOKENS
from tests.service.controller.main_test import ServiceTestCase, answer

pytestmark = browser.MARKS
HOSTILE = "<img src=x onerror=document.title='won'>"


class PageTest(ServiceTestCase):
  async def asyncSetUp(self):
    await super().asyncSetUp()
    self.url = self.addresses.http.removesuffix("api")

  async def test_an_operator_drains_and_cancels(self):
    moody, _ = await self.worker(concurrency=3)
    await self.worker(name=HOSTILE, concurrency=2)
    first = await self.start()
    await self.post("interact", answer("hm"), session=first)
    await self.start(name=HOSTILE)
    async with opened(DESK) as page:
      page.on("dialog", lambda dialog: dialog.accept())
      await page.goto(self.url)
      await page.get_by_text("2 sessions, 1 turn so far").wait_for()
      self.assertIn(HOSTILE, await page.inner_text("#tasks"))
      self.assertFalse(await page.get_by_label("Token").is_visible())
      self.assertEqual(await page.title(), "Controller")
      button = functools.partial(page.get_by_role, "button", exact=True)
      await button(name="Drain moody#1").click()
      await page.get_by_text("alive, draining").wait_for()
      refused = await self.start(wait_s=0)
      self.assertEqual(refused[0], 400)
      await button(name="Admit sessions to moody#1").click()
      await page.get_by_text("alive, draining").wait_for(state="detached")
      second = await self.start()
      await button(name=f"Cancel session {second}").click()
      await until(lambda: moody.num_open == 1)
      await page.get_by_label("of", exact=True).select_option("moody")
      await page.get_by_text("1 session", exact=True).wait_for()
      await button(name="Cancel all sessions").click()
      await self.until_free(moody)
      await page.get_by_text("none is open").wait_for()
      self.assertEqual(page.errors, [])

  async def test_the_page_fits_its_window(self):
    for n in range(3):
      name = f"a-task-with-quite-a-long-name-{n}"
      await self.worker(name=name, concurrency=200)
      for _ in range(3):
        await self.start(name=name)
    for width in (PHONE, DESK):
      async with opened(width) as page:
        await page.goto(self.url)
        await page.get_by_text("9 sessions").first.wait_for()
        self.assertEqual(await sideways(page), 0, width)
        self.assertEqual(page.errors, [])

  async def test_outlives_the_controller(self):
    async with contextlib.AsyncExitStack() as stack:
      page = await stack.enter_async_context(opened(DESK))
      async with service.serve(ServiceConfig(port=0)) as addresses:
        await page.goto(addresses.http.removesuffix("api"))
        await page.get_by_text("No worker has registered").wait_for()
      await page.get_by_text("The controller does not answer").wait_for()
      port = int(addresses.http.rpartition(":")[2].removesuffix("/api"))
      await stack.enter_async_context(service.serve(ServiceConfig(port=port)))
      await page.get_by_text("The controller does not answer").wait_for(
        state="hidden"
      )


class LoginTest(ServiceTestCase):
  access = TOKENS

  async def test_asks_for_the_token_of_operators(self):
    async with opened(PHONE) as page:
      await page.goto(self.addresses.http.removesuffix("api"))
      for token, sentence in (
        (TOKENS.client, "This is not the token of the operators"),
        (TOKENS.operator, "No worker has registered"),
      ):
        await page.get_by_label("Token of the operators").fill(token)
        await page.keyboard.press("Enter")
        await page.get_by_text(sentence).wait_for()
      await page.reload()  # the tab remembers it
      await page.get_by_text("No worker has registered").wait_for()
