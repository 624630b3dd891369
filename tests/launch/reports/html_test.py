"""Tests of `report.html`: a page complete in itself, which fits a phone."""

import base64
import gzip
import json
import pathlib
import re
import tempfile
import unittest
from html.parser import HTMLParser

import pytest

from launch.processes.fault_log import ALARM, EPISODE, SERVER, START, Fault
from launch.reports import html as report
from launch.reports.episodes import Episode
from launch.reports.first_prompts import FirstPrompt
from launch.reports.metrics_file import FILE, read_metrics
from launch.reports.summary import Evaluation, Summary
from tests.launch.reports import synthetic_run


def episodes() -> list[Episode]:
  return [Episode(trajectory=synthetic_run.a_trajectory(), title="after RL")]


def render(summary: Summary | None = None, shown=None) -> str:
  with tempfile.TemporaryDirectory() as folder:
    synthetic_run.write_metrics(pathlib.Path(folder))
    rows = read_metrics(pathlib.Path(folder) / FILE)
  return report.render(
    summary or synthetic_run.a_summary(),
    rows,
    episodes() if shown is None else shown,
  )


class Reader(HTMLParser):
  """Collects the page's text and addresses, and checks that tags are closed."""

  EMPTY = ("meta", "link", "br", "path", "use")

  def __init__(self):
    super().__init__()
    self.text, self.addresses, self.stack = [], [], []

  def handle_starttag(self, tag, attrs):
    self.addresses += [v for k, v in attrs if k in ("src", "href")]
    if tag not in self.EMPTY:
      self.stack.append(tag)

  def handle_endtag(self, tag):
    if tag not in self.EMPTY:
      assert self.stack.pop() == tag, f"</{tag}> closes something else"

  def handle_data(self, data):
    if not {"style", "script"} & {*self.stack}:
      self.text.append(data)


def read(page: str) -> Reader:
  reader = Reader()
  reader.feed(page.replace("<wbr>", ""))  # where words may break
  reader.close()
  return reader


class HeadlineTest(unittest.TestCase):
  def with_rl(self, greedy: float) -> Summary:
    before = {"os": synthetic_run.a_score(0.5)}
    after = {"os": synthetic_run.a_score(greedy)}
    return synthetic_run.summary_of(
      Evaluation("warm_start", "greedy", before),
      Evaluation("rl", "greedy", after),
    )

  def test_claims_no_more_than_the_interval_allows(self):
    for rate, claim in (
      (0.8, "RL raised held-out"),
      (0.2, "RL lowered held-out"),
      (0.52, "RL moved held-out"),
      (0.48, "RL moved held-out"),
    ):
      with self.subTest(rate=rate):
        said = report.headline(self.with_rl(rate))
        self.assertTrue(said.startswith(claim), said)
        self.assertEqual("within the error" in said, "moved" in claim)

  def test_says_when_nothing_was_evaluated(self):
    empty = synthetic_run.summary_of()
    self.assertIn("No policy was evaluated", report.headline(empty))


class PageTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    cls.page = render()
    cls.reader = read(cls.page)
    cls.text = " ".join(" ".join(cls.reader.text).split())

  def test_first_prompts(self):
    evil = "</pre><script>alert(1)</script>"
    page = report.render(
      synthetic_run.a_summary(),
      [],
      [],
      prompts={
        "shop": FirstPrompt("shop train 0", evil, [7, 8, 9], ""),
        "web": FirstPrompt("web", "", [], "no machine is left"),
      },
    )
    text = "".join(read(page).text)
    for part in (evil, "7 8 9", "3 tokens, shop train 0", "no machine"):
      self.assertIn(part, text)

  def test_tags_are_closed(self):
    self.assertEqual(self.reader.stack, [])

  def test_loads_nothing(self):
    self.assertTrue(self.reader.addresses)
    for address in self.reader.addresses:
      if address != "data:,":
        self.assertRegex(address, "^#")
        self.assertIn(f'id="{address[1:]}"', self.page)
    self.assertNotRegex(self.page, r"url\(\s*['\"]?http")
    self.assertIn("default-src 'none'", self.page)

  def test_shows_the_numbers_filed(self):
    body = synthetic_run.a_summary().to_json()
    for evaluation in body["evaluations"]:
      for score in [*evaluation["tasks"].values(), evaluation["mean"]]:
        self.assertIn(f"{100 * score['success']:.1f} %", self.text)
    for shown in ("5:50", "2:51", "0" * 40, "0.10.2", "loss.clip_high", "0.28"):
      self.assertIn(shown, self.text)

  def test_episodes_are_answers_to_the_viewers_script(self):
    blocks = dict(re.findall(r'data-api="([^"]*)">([^<]*)<', self.page))
    self.assertEqual([*blocks], ["trajectories", "trajectories/0.0"])
    packed = base64.b64decode(blocks["trajectories/0.0"])
    page = json.loads(gzip.decompress(packed))
    self.assertEqual(page["messages"][2]["calls"][0]["name"], "execute_sql")
    self.assertTrue(report.viewer_script().strip() in self.page)
    self.assertNotIn("after <1999>?", self.page)

  @pytest.mark.slow
  def test_a_run_that_kept_nothing_is_shown_too(self):
    page = report.render(synthetic_run.summary_of(), [], [])
    text = " ".join(read(page).text)
    self.assertIn("No policy was evaluated", text)
    self.assertIn("No episode was kept", text)
    self.assertIn("<one>", text)

  @pytest.mark.slow
  def test_faults_are_listed_and_a_run_without_them_has_no_table(self):
    self.assertNotIn("Faults", self.page)
    summary = synthetic_run.summary_of()
    faults = [
      Fault(0.0, 3, START),
      Fault(60.0, 4, EPISODE, 2, "Lost/<one>"),
      Fault(61.0, 5, ALARM, what="since update 1 no call of <b> could be read"),
    ]
    page = report.render(summary, [], [], faults=faults)
    text = " ".join(" ".join(read(page).text).split())
    self.assertIn("Faults time update", text)
    self.assertIn(
      "1970-01-01 00:00 UTC 3 the learner started again, from update 3", text
    )
    self.assertIn("4 2 episodes of <one> broken: Lost", text)
    self.assertIn(
      "Alarms Update 5: since update 1 no call of <b> could be read.", text
    )
    self.assertNotIn("Alarms", self.page)
    many = [Fault(0.0, i, SERVER) for i in range(report.NUM_FAULTS + 1)]
    page = report.render(summary, [], [], faults=many)
    self.assertIn("Faults, the latest 200 of 201", page)
    self.assertEqual(page.count("1 rollout server lost"), 200)


class WritingTest(unittest.TestCase):
  def test_half_a_surrogate_pair_breaks_no_report(self):
    fault = Fault(0.0, 1, EPISODE, what="disk \ud83d")
    summary = synthetic_run.a_summary()
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "report.html"
      report.write_report(summary, (), (), path, faults=[fault])
      self.assertIn("\ufffd", path.read_text(encoding="utf-8"))
      self.assertEqual([*path.parent.iterdir()], [path])


class BreakableTest(unittest.TestCase):
  def test_keys_break_where_words_end(self):
    self.assertEqual(report.breakable("a.b_c"), "a.<wbr>b_<wbr>c")
    self.assertEqual(report.breakable("a.<i>"), "a.<wbr>&lt;i&gt;")
