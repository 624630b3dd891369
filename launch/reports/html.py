"""The report of a run as one self-contained page, `report.html`.

Everything is inside the file, so it can be mailed, archived, and opened with no
network: no script, no font, no image is loaded. It shows its inputs and
computes no number of its own.
"""

import pathlib
import re
from collections.abc import Sequence

import jinja2
import markupsafe

from agentrl_jax.data.records import unicode_text
from agentrl_jax.files import write_whole
from agentrl_jax.metrics import Row
from launch.processes.fault_log import EPISODE, SERVER, START, Fault
from launch.reports import numbers
from launch.reports.attempts import attempts_table
from launch.reports.episodes import Episode, message_views, turn_views
from launch.reports.plots import panel_svgs
from launch.reports.summary import MODES, Comparison, Summary
from launch.reports.tables import BESIDE, before_after, stage_times

NUM_FAULTS = 200  # the latest are shown
TEMPLATES = pathlib.Path(__file__).parent / "templates"


def write_report(
  summary: Summary,
  metrics: Sequence[Row],
  episodes: Sequence[Episode],
  path: pathlib.Path,
  *,
  faults: Sequence[Fault] = (),
) -> None:
  """Writes the page. Raises `NotWritten`."""
  page = render(summary, metrics, episodes, faults=faults)
  write_whole(path, unicode_text(page))


def render(
  summary: Summary,
  metrics: Sequence[Row],
  episodes: Sequence[Episode],
  *,
  faults: Sequence[Fault] = (),
) -> str:
  """Renders the page as text."""
  tables = [before_after(summary, mode) for mode in MODES]
  return (
    page_templates()
    .get_template("report.html")
    .render(
      summary=summary,
      headline=headline(summary),
      when=numbers.moment(metrics[-1].time_s) if metrics else "",
      tables=[table for table in tables if table is not None],
      verdicts=[
        sentence
        for stage, player, _ in BESIDE
        if (
          sentence := verdict(
            summary.comparison(stage, "greedy"), f"the {player}"
          )
        )
      ],
      panels=panel_svgs(
        metrics, summary.evaluations, has_warm_start=summary.has_warm_start
      ),
      attempts=attempts_table(metrics),
      faults=faults[-NUM_FAULTS:],
      num_faults=len(faults),
      times=stage_times(summary),
      episodes=episodes,
    )
  )


def headline(summary: Summary) -> str:
  """The result in one sentence; greedy if that was evaluated."""
  for mode in MODES:
    gain = summary.comparison("warm_start", mode)
    if gain is not None:
      before, after = gain.mean.before, gain.mean.after
      rates = f"{numbers.percent(before)} to {numbers.percent(after)}"
      what = f"held-out success from {rates}"
      of_whom = f"{mode}, mean of {len(gain.tasks)} tasks"
      if len(gain.tasks) == 1:
        of_whom = f"{mode}, {next(iter(gain.tasks))}"
      if gain.mean.low <= 0 <= gain.mean.high:
        return f"RL moved {what}, which is within the error ({of_whom})"
      verb = "raised" if gain.mean.difference > 0 else "lowered"
      return f"RL {verb} {what} ({of_whom})"
  return "No policy was evaluated both before and after RL"


def verdict(comparison: Comparison | None, player: str) -> str:
  """Says per task if RL's policy surpassed another player."""
  if comparison is None:
    return ""
  parts = []
  for task, each in comparison.tasks.items():
    if each.low > 0:
      place = "beyond"
    elif each.high < 0:
      place = "short of"
    else:
      place = "level with"
    parts.append(
      f"{task} ended {place} {player} "
      f"({numbers.points(each.difference)} points)"
    )
  return "; ".join(parts) + "."


def fault_text(fault: Fault) -> str:
  """Says in words what was lost, and what it cost."""
  plural = "s" * (fault.count > 1)
  cause, _, task = fault.what.rpartition("/")
  return {
    START: f"the learner started again, from update {fault.version}",
    SERVER: f"{fault.count} rollout server{plural} lost; others answered",
    EPISODE: f"{fault.count} episode{plural} of {task} broken: {cause}",
  }[fault.kind]


def breakable(key: str) -> markupsafe.Markup:
  """A dotted key that a browser may break after its dots and underscores."""
  return markupsafe.Markup(
    re.sub(r"([._])", r"\1<wbr>", str(markupsafe.escape(key)))
  )


def page_templates() -> jinja2.Environment:
  """Returns the templates of all pages."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,  # a misspelt name fails, not vanishes
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.tests["success"] = lambda trajectory: trajectory.is_success
  environment.filters |= {
    "breakable": breakable,
    "duration": numbers.duration,
    "fault_text": fault_text,
    "moment": numbers.moment,
    "stage_name": numbers.stage_name,
    "message_views": message_views,
    "turn_views": turn_views,
  }
  return environment
