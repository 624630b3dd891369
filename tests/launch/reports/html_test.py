"""Tests of `report.html`: a page complete in itself, which fits a phone."""

import html
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
from html.parser import HTMLParser

import numpy as np
import pytest

from agentrl_jax.data.records import Status
from agentrl_jax.metrics import FILE, read_metrics
from launch.processes.fault_log import EPISODE, SERVER, START, Fault
from launch.reports import html as report
from launch.reports import numbers
from launch.reports.episodes import Episode
from launch.reports.summary import Evaluation, Summary
from tests.launch.reports import synthetic_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER_DEADLINE_S = 120
PHONE_PX = 390


def episodes() -> list[Episode]:
  trajectory = synthetic_run.a_trajectory()
  lost = synthetic_run.a_trajectory(
    reward=-0.2, status=Status.AGENT_CONTEXT_LIMIT
  )
  return [
    Episode(
      trajectory=trajectory,
      title="after RL, greedy",
      token_text=[["<tool_call>", "\n", *["x" * 9] * 12]] * 3,
      policy_logprob=[np.full(14, -0.5)] * 3,
    ),
    Episode(trajectory=lost, title="warm start, sampled"),
  ]


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

  EMPTY = ("meta", "br", "path", "use")

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
    if "style" not in self.stack:
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

  def test_the_expert_is_beaten_only_beyond_the_interval(self):
    for rate, place in ((0.8, "beyond"), (0.2, "short of"), (0.52, "level")):
      evaluations = self.with_rl(rate).evaluations
      expert = Evaluation("expert", "greedy", evaluations[0].tasks)
      summary = synthetic_run.summary_of(*evaluations, expert)
      with self.subTest(rate=rate):
        compared = summary.comparison("expert", "greedy")
        said = report.verdict(compared, "the expert")
        self.assertIn(f"os ended {place}", said)

  def test_says_when_nothing_was_evaluated(self):
    empty = synthetic_run.summary_of()
    self.assertIn("No policy was evaluated", report.headline(empty))


class PageTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    cls.page = render()
    cls.reader = read(cls.page)
    cls.text = " ".join(" ".join(cls.reader.text).split())

  def test_tags_are_closed(self):
    self.assertEqual(self.reader.stack, [])

  def test_loads_nothing(self):
    self.assertTrue(self.reader.addresses)
    for address in self.reader.addresses:
      self.assertRegex(address, "^#")
    self.assertNotRegex(self.page, r"url\(\s*['\"]?http")
    self.assertNotIn("<script", self.page)

  @pytest.mark.slow
  def test_links_lead_somewhere(self):
    for address in self.reader.addresses:
      self.assertIn(f'id="{address[1:]}"', self.page)

  def test_shows_the_numbers_filed(self):
    body = synthetic_run.a_summary().to_json()
    for evaluation in body["evaluations"]:
      for score in [*evaluation["tasks"].values(), evaluation["mean"]]:
        self.assertIn(f"{100 * score['success']:.1f} %", self.text)
    for shown in ("5:50", "2:51", "0" * 40, "0.10.2", "loss.clip_high", "0.28"):
      self.assertIn(shown, self.text)

  def test_shows_players_beside_the_policy(self):
    for shown in (
      "webshop ended level with the scripted baseline (−5.0 points)",
      "dbbench ended beyond the scripted baseline (+63.0 points)",
      "dbbench ended short of the error-free expert (−25.0 points)",
    ):
      self.assertIn(shown, self.text)

  def test_shows_success_per_minute(self):
    for learned in synthetic_run.a_summary().learning.values():
      self.assertIn(numbers.points(learned.per_minute), self.text)

  def test_shows_episodes_turn_by_turn(self):
    for shown in (
      "execute_sql",
      "commit_final_answer",
      "policy slot 1, step 13",
      "mean logprob",
      "reward 1.00",
      "success, reward 1.00",
      "agent context limit",
      "reward -0.20",
      "the arguments are not JSON",
      '{"query": "SELECT 1',
    ):
      with self.subTest(shown=shown):
        self.assertIn(shown, self.text)

  def test_what_the_policy_writes_is_never_markup(self):
    self.assertIn("after &lt;1999&gt;?", self.page)
    self.assertIn("&lt;tool_call&gt;", self.page)
    self.assertNotIn("<tool_call>", self.page)

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
    faults = [Fault(0.0, 3, START), Fault(60.0, 4, EPISODE, 2, "Lost/<one>")]
    page = report.render(summary, [], [], faults=faults)
    text = " ".join(" ".join(read(page).text).split())
    self.assertIn("Faults time update", text)
    self.assertIn(
      "1970-01-01 00:00 UTC 3 the learner started again, from update 3", text
    )
    self.assertIn("4 2 episodes of <one> broken: Lost", text)
    many = [Fault(0.0, i, SERVER) for i in range(report.NUM_FAULTS + 1)]
    page = report.render(summary, [], [], faults=many)
    self.assertIn("Faults, the latest 200 of 201", page)
    self.assertEqual(page.count("1 rollout server lost"), 200)

  @pytest.mark.slow
  def test_writes_one_whole_file(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "report.html"
      report.write_report(synthetic_run.a_summary(), [], episodes(), path)
      self.assertEqual([p.name for p in path.parent.iterdir()], [path.name])
      self.assertTrue(path.read_text().rstrip().endswith("</html>"))


@pytest.mark.skipif(
  CHROMIUM is None,
  reason="needs a browser to lay the page out; apt-get install chromium",
)
class BrowserTest(unittest.TestCase):
  def widths(self, page: str, width: int) -> tuple[int, int]:
    """Lays the page out in a frame `width` wide: (frame, content)."""
    page = re.sub(r"<details class", "<details open class", page)
    probe = f"""<!doctype html><body>
      <iframe style="width:{width}px;height:900px;border:0"
        srcdoc="{html.escape(page)}"></iframe>
      <script>
      const frame = document.querySelector("iframe");
      frame.onload = () => {{
        const root = frame.contentDocument.documentElement;
        document.title = `${{frame.contentWindow.innerWidth}} `
          + `${{root.scrollWidth}}`;
      }};
      </script></body>"""
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "probe.html"
      path.write_text(probe, encoding="utf-8")
      done = subprocess.run(
        [
          CHROMIUM,
          "--headless",
          "--no-sandbox",
          "--disable-gpu",
          "--disable-quic",
          "--no-first-run",
          "--hide-scrollbars",  # a phone draws them over the page
          "--disable-background-networking",
          "--disable-component-update",
          "--disable-sync",
          f"--user-data-dir={folder}/profile",
          "--dump-dom",
          path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=BROWSER_DEADLINE_S,
      )
    found = re.search(r"<title>(\d+) (\d+)</title>", done.stdout)
    self.assertIsNotNone(found, f"no measure came back: {done.stderr[-2000:]}")
    return int(found[1]), int(found[2])

  @pytest.mark.slow
  def test_nothing_sticks_out_on_a_phone(self):
    page = render()
    self.assertEqual(self.widths(page, PHONE_PX), (PHONE_PX, PHONE_PX))

  @pytest.mark.slow
  def test_the_measure_sees_what_sticks_out(self):
    wide = '<main><div style="width:500px">wide</div>'
    page = render(shown=[]).replace("<main>", wide)
    _, content = self.widths(page, PHONE_PX)
    self.assertGreater(content, PHONE_PX)


class WritingTest(unittest.TestCase):
  def test_half_a_surrogate_pair_breaks_no_report(self):
    fault = Fault(0.0, 1, EPISODE, what="disk \ud83d")
    summary = synthetic_run.a_summary()
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "report.html"
      report.write_report(summary, (), episodes(), path, faults=[fault])
      self.assertIn("\ufffd", path.read_text(encoding="utf-8"))
      self.assertEqual([*path.parent.iterdir()], [path])


class BreakableTest(unittest.TestCase):
  def test_keys_break_where_words_end(self):
    self.assertEqual(report.breakable("a.b_c"), "a.<wbr>b_<wbr>c")
    self.assertEqual(report.breakable("a.<i>"), "a.<wbr>&lt;i&gt;")
