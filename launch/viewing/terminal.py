"""A run in the terminal: its newest numbers, and one trajectory as text."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launch.reports.numbers import count, duration, moment, percent
from launch.reports.schema import (
  ListedTrajectory,
  MessageView,
  RunNow,
  TurnView,
)
from launch.viewing.server import Viewer

_PERIOD_S = 2.0  # between two looks at a run that goes on
_FAULTS = 3  # the latest are shown
_ROWS = 15  # of the latest trajectories
_HEAD = 12  # lines above the trajectories, of a terminal's height
# Of a terminal's own commands: what a policy or a tool wrote must not give any.
_CONTROL = {
  code: f"\\x{code:02x}"
  for code in [*range(32), *range(127, 160)]
  if chr(code) not in "\n\t"
}
_ROLES = {
  "system": "dim",
  "user": "cyan",
  "assistant": "green",
  "tool": "yellow",
}


def visible(text: str) -> str:
  """Returns a text with each control character as its escape."""
  return text.translate(_CONTROL)


def follow(viewer: Viewer, console: Console) -> None:
  """Shows a run until Ctrl-C; once, if the console is no terminal."""
  if not console.is_terminal:
    console.print(overview(viewer, _ROWS))
    return
  with Live(
    console=console, auto_refresh=False, vertical_overflow="crop"
  ) as live:
    while True:
      rows = max(console.height - _HEAD, 1)
      live.update(overview(viewer, rows), refresh=True)
      time.sleep(_PERIOD_S)


def overview(viewer: Viewer, num_rows: int) -> RenderableType:
  """Renders the newest numbers, and the trajectories that were kept last."""
  now = viewer.now()
  listed = viewer.listing().trajectories
  parts: list[RenderableType] = [
    Text(_head(now)),
    Text("  ".join(_figures(now)), style="dim"),
    *(Text(_alarm(task), style="bold red") for task in now.stopped),
    *(Text(sentence, style="bold red") for sentence in now.alarms),
    *(Text(line, style="red") for line in _faults(now)),
    *([_table(listed[:num_rows])] if listed else []),
    Text(
      f"{len(listed)} trajectories are kept; --trajectory=ID shows one",
      style="dim",
    ),
  ]
  return Group(*parts)


def transcript(viewer: Viewer, id: str) -> RenderableType:
  """Renders the messages and tool calls of a trajectory.

  Raises `UnknownTrajectoryError`.
  """
  page = viewer.trajectory(id)
  (facts,) = (t for t in viewer.listing().trajectories if t.id == id)
  lines = [
    Text(
      f"{facts.task}/{facts.split}/{facts.index}, attempt "
      f"{facts.attempt}, {facts.played}: {facts.status}, reward "
      f"{facts.reward:.3g} (its group: {facts.group_mean:.3g})",
      style="bold",
    )
  ]
  for message in page.messages:
    lines += _message(message, page.turns)
  return Group(*lines)


def _head(now: RunNow) -> str:
  words = f"{now.name}: update {count(now.update)} of "
  words += count(now.updates)
  if now.is_finished:
    return f"{words}, finished"
  if now.age_s is None:
    return f"{words}, which has not begun"
  return f"{words}, {duration(now.age_s)} ago"


def _figures(now: RunNow) -> list[str]:
  success = [f"{task} {percent(s)}" for task, s in now.success.items()]
  figures = [f"{text} {x:.4g}" for text, x in now.figures.items()]
  return (
    [f"success {now.success_of}:", *success, *figures] if success else figures
  )


def _alarm(task: str) -> str:
  return f"no groups of {task} start: its environment fails or hangs"


def _faults(now: RunNow) -> list[str]:
  if not now.num_faults:
    return []
  latest = now.faults[-_FAULTS:]
  return [f"{now.num_faults} faults; the latest:"] + [
    visible(f"  {moment(fault.time_s)} {fault.text}").partition("\n")[0]
    for fault in latest
  ]


def _table(rows: Sequence[ListedTrajectory]) -> Table:
  table = Table(box=None, pad_edge=False)
  for name in ("id", "played", "task", "status"):
    table.add_column(name, no_wrap=True)
  for name in ("reward", "turns", "tokens"):
    table.add_column(name, justify="right", no_wrap=True)
  for row in rows:
    table.add_row(
      Text(row.id),
      Text(row.played),
      Text(row.task),
      Text(
        row.status + ", cut" * bool(row.num_cut),
        style="green" if row.is_success else "",
      ),
      f"{row.reward:.3g}",
      str(row.num_turns),
      str(row.num_tokens),
    )
  return table


def _message(message: MessageView, turns: Sequence[TurnView]) -> list[Text]:
  style = _ROLES.get(message.role, "")
  head = message.role
  if message.turn is not None:
    turn = turns[message.turn]
    head += (
      f", turn {message.turn + 1}: {len(turn.sampled)} tokens of policy "
      f"slot {turn.policy_slot}{_versions(turn.version)}"
      f"{', cut at a limit of tokens' * turn.is_cut}"
    )
  calls = [
    Text(
      visible(f"  {call.name} {call.arguments}").replace("\n", "\n    "),
      style=style,
    )
    for call in message.calls
  ]
  content = visible(message.content).strip()
  return [
    Text(""),
    Text(visible(head), style=f"bold {style}"),
    *([Text(content)] if content else []),
    *calls,
  ]


def _versions(versions: Sequence[int]) -> str:
  if not versions:
    return ""
  first, last = min(versions), max(versions)
  return f", version {first}" + (f" to {last}" if last > first else "")
