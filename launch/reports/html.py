"""Pages: the report of a run, comparisons, and the viewer of trajectories.

Each page is one file, so it can be mailed, archived, and opened with no
network: nothing is loaded. All are of the templates beside this module, and the
viewer's script shows trajectories in whichever page has them. Pages show their
inputs and compute no number of their own.
"""

import base64
import gzip
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import jinja2
import markupsafe

from agentrl_jax.data.records import unicode_text
from agentrl_jax.files import write_whole
from launch.processes.fault_log import (
  ALARM,
  EPISODE,
  NOTE,
  SERVER,
  START,
  Fault,
  split_alarms,
)
from launch.reports import numbers
from launch.reports.curves import HELD_OUT_LOSS, skipped_updates
from launch.reports.episodes import Answer, Episode, viewer_answers
from launch.reports.first_prompts import FirstPrompt
from launch.reports.metrics_file import Row
from launch.reports.plots import run_plots
from launch.reports.summary import MODES, Summary
from launch.reports.tables import attempts_table, before_after, stage_times

NUM_FAULTS = 200  # the latest are shown
TEMPLATES = pathlib.Path(__file__).parent / "templates"


def write_report(
  summary: Summary,
  metrics: Sequence[Row],
  episodes: Sequence[Episode],
  path: pathlib.Path,
  *,
  faults: Sequence[Fault] = (),
  prompts: Mapping[str, FirstPrompt] = MappingProxyType({}),
) -> None:
  """Writes the report of a run. Raises `NotWritten`."""
  page = render(summary, metrics, episodes, faults=faults, prompts=prompts)
  write_whole(path, unicode_text(page))


def render(
  summary: Summary,
  metrics: Sequence[Row],
  episodes: Sequence[Episode],
  *,
  faults: Sequence[Fault] = (),
  prompts: Mapping[str, FirstPrompt] = MappingProxyType({}),
) -> str:
  """Renders the report as text."""
  tables = [before_after(summary, mode) for mode in MODES]
  alarms, faults = split_alarms(faults)
  return page(
    "report.html",
    summary=summary,
    headline=headline(summary),
    when=numbers.moment(metrics[-1].time_s) if metrics else "",
    tables=[table for table in tables if table is not None],
    notes=held_out_losses(metrics),
    plots=run_plots(metrics, summary.evaluations),
    skipped=skipped_updates(metrics),
    attempts=attempts_table(metrics),
    alarms=alarms[-NUM_FAULTS:],
    faults=faults[-NUM_FAULTS:],
    num_faults=len(faults),
    prompts=prompts,
    times=stage_times(summary),
    blocks=[_block(*x) for x in viewer_answers(episodes) if episodes],
  )


def page(template: str, **values: object) -> str:
  """Renders a page of a template."""
  return _templates().get_template(template).render(**values)


def viewer_page() -> str:
  """Renders the viewer's page for a server that answers its questions."""
  return page("viewer.html", blocks=None)


def viewer_script() -> str:
  """Returns the script of that page."""
  return (TEMPLATES / "viewer.js").read_text("utf-8")


def viewer_chunks(answers: Iterable[Answer]) -> Iterator[str]:
  """Renders the viewer's page with all answers in it, a few at a time."""
  template = _templates().get_template("viewer.html")
  return template.generate(blocks=(_block(*answer) for answer in answers))


def page_json(value: object) -> str:
  """Returns the JSON of an answer, which is made of data classes."""
  return json.dumps(value, default=vars)


def _block(name: str, value: object) -> markupsafe.Markup:
  """Returns an answer as an element, which no text of a policy can end.

  Each is compressed, and the page unpacks it when it is looked at: a page of
  thousands opens as fast as its list.
  """
  packed = gzip.compress(page_json(value).encode(), 6, mtime=0)
  return markupsafe.Markup(
    f'<script type="text/plain" data-api="{markupsafe.escape(name)}">'
    f"{base64.b64encode(packed).decode()}</script>\n"
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


def held_out_losses(metrics: Sequence[Row]) -> list[str]:
  """Says what a warm start made of the loss of chats that it held out."""
  found = [f"{row.values.get(HELD_OUT_LOSS, 0):.3g}" for row in metrics]
  losses = [loss for loss in found if loss != "0"]
  return losses and [
    f"The loss of chats that were held out went from {losses[0]} to "
    f"{losses[-1]} nats per token."
  ]


def fault_text(fault: Fault) -> str:
  """Says in words what was lost, and what it cost."""
  plural = "s" * (fault.count > 1)
  cause, _, task = fault.what.rpartition("/")
  return {
    START: f"the learner started again, from update {fault.version}",
    SERVER: f"{fault.count} rollout server{plural} lost; others answered",
    EPISODE: f"{fault.count} episode{plural} of {task} broken: {cause}",
    **dict.fromkeys((ALARM, NOTE), fault.what),
  }[fault.kind]


def breakable(key: str) -> markupsafe.Markup:
  """A dotted key that a browser may break after its dots and underscores."""
  return markupsafe.Markup(
    re.sub(r"([._])", r"\1<wbr>", str(markupsafe.escape(key)))
  )


def _templates() -> jinja2.Environment:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,  # a misspelt name fails, not vanishes
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {
    "breakable": breakable,
    "fault_text": fault_text,
    "moment": numbers.moment,
  }
  return environment
