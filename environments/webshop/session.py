"""One attempt at one purchase: messages in, pages out, a verdict at the end.

The rules are AgentBench's: only the first tool call is played; no call, an
unknown tool or an impossible click costs a round and changes nothing; after the
last round the attempt is over, with nothing bought and nothing paid.
"""

import json
import re
from collections.abc import Mapping

from agentrl_jax.data.messages import Message, Tool, ToolCall
from agentrl_jax.data.trajectory import Status
from agentrl_jax.env.interface import Session, Step
from environments.webshop import prompts
from environments.webshop.shop.browser import Browser
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.pages import PageStyle
from environments.webshop.shop.product import Goal
from environments.webshop.shop.reward import judge

MAX_ECHO = 1_000  # characters of an action that a page repeats
_VERBS = {prompts.SEARCH: "search", prompts.CLICK: "click"}
# How upstream reads an action back that it has written as text itself: what
# holds a bracket or a line break is lost.
_ACTION = re.compile(r"(.+)\[(.+)\]")
NOT_BOUGHT: Mapping[str, float] = {"success": 0.0}


class ShoppingSession(Session):
  """Plays one goal in one catalogue."""

  def __init__(
    self,
    catalogue: Catalogue,
    goal: Goal,
    *,
    style: PageStyle,
    system_prompt: str,
    tools: tuple[Tool, ...],
    max_rounds: int,
    upstream_quirks: bool = False,
  ):
    self.tools = tools
    self._goal = goal
    self._style = style
    self._system_prompt = system_prompt
    self._rounds_left = max_rounds
    self._upstream_quirks = upstream_quirks
    self._browser = Browser(catalogue, goal.instruction, style)
    self._observation = self._read_page()
    self._last_call_id: str | None = None

  async def reset(self) -> Step:
    """The rules and the first page."""
    page = self._describe("The initial observation:\n")
    system = Message("system", self._system_prompt)
    return Step((system, Message("user", page)))

  async def step(self, answer: Message) -> Step:
    """Plays the first call of `answer`; the others are ignored."""
    self._rounds_left -= 1
    if not answer.tool_calls:
      self._observation = prompts.NO_CALL
      return self._go_on(self._repeat())
    call = answer.tool_calls[0]
    value = _first_argument(call)
    if value is None:
      return self._go_on(
        Message("user", prompts.UNREADABLE_CALL), self._repeat()
      )
    self._last_call_id = call.id
    if call.name not in _VERBS:
      return self._go_on(self._repeat())
    verb = _VERBS[call.name]
    self._act(verb, value)
    return self._show(f"{verb}[{value[:MAX_ECHO]}]")

  def _act(self, verb: str, value: str) -> None:
    """Searches or clicks."""
    if self._upstream_quirks:
      found = _ACTION.match(f"{verb}[{value}]")
      verb, value = found.groups() if found else ("", "")
    if verb == "search":
      self._browser.search(value)
    elif verb == "click":
      self._browser.click(value)

  def _show(self, action: str) -> Step:
    """What came of an action that was understood."""
    if self._browser.bought is not None:
      verdict = judge(
        self._browser.bought, self._browser.chosen.values(), self._goal
      )
      return Step((), verdict.reward, Status.COMPLETED, verdict.metrics)
    self._observation = self._read_page()
    content = self._describe(f"Action: {action}\n\nObservation:\n")
    return self._go_on(
      Message("tool", content, tool_call_id=self._last_call_id)
    )

  def _go_on(self, *messages: Message) -> Step:
    """`messages`, unless the rounds are used up."""
    if self._rounds_left > 0:
      return Step(messages)
    # Of the last round upstream sends no page, only what was unreadable.
    unreadable = tuple(
      m for m in messages if m.content == prompts.UNREADABLE_CALL
    )
    end = Message(
      "tool", prompts.LIMIT_REACHED, tool_call_id=self._last_call_id
    )
    return Step(
      (*unreadable, end), status=Status.TASK_LIMIT_REACHED, metrics=NOT_BOUGHT
    )

  def _repeat(self) -> Message:
    """The page as it stands, to a policy that called nothing of use."""
    return Message("user", self._describe("Observation:\n"))

  def _read_page(self) -> str:
    return self._style.separator.join(self._browser.page.texts)

  def _describe(self, heading: str) -> str:
    content = self._observation
    if self._style.show_headings:
      content = heading + content
    if self._style.list_actions:
      actions = self._browser.page.actions
      content = f"{content}\n\nAvailable Actions:\n{actions}"
    return content


def _first_argument(call: ToolCall) -> str | None:
  """The first value of the arguments, whatever its name, as upstream reads it.

  None where the text is no JSON object or an empty one.
  """
  try:
    arguments = json.loads(call.arguments)
  except (ValueError, RecursionError):
    return None
  if not isinstance(arguments, dict) or not arguments:
    return None
  value = str(next(iter(arguments.values())))
  return value.encode(errors="replace").decode()  # no half surrogate pairs
