"""Tests of pages: trails, forms of demonstrations, rewards."""

import collections
import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.contract import SessionContract
from studies.environments.pages import trail
from studies.environments.pages.environment import FORMS, Pages
from studies.environments.pages.trail import LINK
from tests.environments.answers import call
from tests.environments.playing import play, play_answers
from tests.environments.scripted_test import success


def task_of_form(environment, form):
  for index in environment.indices("train")[:100]:
    task = Task("pages", "train", index)
    if environment.form(task) == form:
      return task
  raise AssertionError(f"no task shows {form}")


class AloneContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Pages()


class FormsContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Pages(num_steps=3, forms=FORMS)


class TrailTest(parameterized.TestCase):
  def test_the_end_is_as_many_links_away(self):
    content = Pages(num_steps=3).find(Task("pages", "train", 5))
    page = content.start
    for _ in range(3):
      (found,) = LINK.findall(content.text(page))
      page = int(found)
    self.assertEqual(content.end, page)

  def test_splits_share_no_first_page(self):
    environment = Pages()
    starts = {
      split: {
        environment.find(Task("pages", split, index)).start
        for index in range(400)
      }
      for split in ("train", "test")
    }
    self.assertTrue(starts["train"].isdisjoint(starts["test"]))
    self.assertGreater(len(starts["train"]), 30)

  def test_tasks_have_pages_of_their_own(self):
    """Else a policy could know where a page leads without reading it."""
    environment = Pages()
    found = collections.Counter(
      environment.find(Task("pages", "train", index)).next(42)
      for index in range(300)
    )
    self.assertGreater(len(found), 60)
    self.assertLess(max(found.values()), 15)

  def test_no_page_links_to_itself(self):
    content = Pages().find(Task("pages", "train", 0))
    for page in range(trail.FIRST, trail.LAST + 1):
      self.assertNotEqual(content.next(page), page)

  def test_every_page_is_equally_long(self):
    """So that the number of pages alone decides what fits a context."""
    content = Pages(num_notes=24).find(Task("pages", "train", 0))
    lengths = {len(content.text(page)) for page in range(10, 100)}
    self.assertLen(lengths, 1)
    self.assertEqual(content.text(10).count(","), 24)


class FormsTest(unittest.IsolatedAsyncioTestCase):
  async def test_each_form_reads_what_its_role_reads(self):
    environment = Pages(num_steps=3, num_notes=5, forms=FORMS)
    for form, num_turns, has_link in (
      ("alone", 4, True),
      ("planner", 4, False),
      ("worker", 2, True),
    ):
      with self.subTest(form=form):
        task = task_of_form(environment, form)
        steps = await play(environment, task)
        replies = [m.content for s in steps[1:-1] for m in s.messages]
        self.assertEqual(len(steps), num_turns + 1)
        for reply in replies:
          self.assertEqual(bool(LINK.search(reply)), has_link, reply)
        self.assertEqual(steps[-1].reward, 1.0)

  async def test_a_worker_s_way_is_one_link(self):
    environment = Pages(num_steps=3, forms=("worker",))
    task = Task("pages", "train", 0)
    content = environment.find(task)
    answer = call("answer", {"page": content.next(content.start)})
    first, step = await play_answers(environment, task, answer)
    self.assertEqual(
      first.messages[0].content, f"Follow 1 from {content.start}."
    )
    self.assertEqual(step.reward, 1.0)

  async def test_a_script_that_follows_links_wins_every_form(self):
    environment = Pages(num_steps=3, forms=FORMS)
    policy = environment.scripted_policies()[environment.baseline]
    self.assertEqual(await success(environment, policy, num_tasks=20), 1.0)

  async def test_a_wrong_page_has_no_reward(self):
    environment = Pages()
    task = Task("pages", "train", 0)
    wrong = environment.find(task).next(environment.find(task).end)
    answer = call("answer", {"page": wrong})
    _, step = await play_answers(environment, task, answer)
    self.assertEqual((step.reward, step.status), (0.0, Status.COMPLETED))
