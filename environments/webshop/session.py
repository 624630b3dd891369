"""Session of one WebShop task, by AgentBench's rules.

- Only the first tool call of an answer is run.
- No call, an unknown tool or an impossible click costs a round and changes
  nothing.
- After the last round the session ends without purchase and reward.
"""

import json
from collections.abc import Mapping

from agentrl_jax.data.records import (
  Message,
  Status,
  Tool,
  ToolCall,
  unicode_text,
)
from agentrl_jax.env.interface import Session, Step
from environments.options import PageStyle
from environments.webshop import prompts
from environments.webshop.shop.browser import Browser
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal
from environments.webshop.shop.reward import score_purchase

MAX_ECHO = 1_000  # characters of an action that a reply repeats
_VERBS = {prompts.SEARCH: "search", prompts.CLICK: "click"}
NOT_BOUGHT: Mapping[str, float] = {"success": 0.0}


class ShoppingSession(Session):
  """One session about one goal in one catalogue."""

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
    page = self._describe("The initial observation:\n")
    system = Message("system", self._system_prompt)
    return Step((system, Message("user", page)))

  async def step(self, answer: Message) -> Step:
    """Runs the first call of `answer`, and ignores the others."""
    self._rounds_left -= 1
    if not answer.tool_calls:
      self._observation = prompts.NO_CALL
      return self._continue(self._repeat_page())
    call = answer.tool_calls[0]
    value = _first_argument(call)
    if value is None:
      return self._continue(
        Message("user", prompts.UNREADABLE_CALL), self._repeat_page()
      )
    self._last_call_id = call.id
    if call.name not in _VERBS:
      return self._continue(self._repeat_page())
    verb = _VERBS[call.name]
    self._act(verb, value)
    return self._reply(f"{verb}[{value[:MAX_ECHO]}]")

  def _act(self, verb: str, value: str) -> None:
    if self._upstream_quirks:
      verb, value = parsed_again(f"{verb}[{value}]")
    if verb == "search":
      self._browser.search(value)
    elif verb == "click":
      self._browser.click(value)

  def _reply(self, action: str) -> Step:
    """Returns the score of a purchase, or the page after the action."""
    if self._browser.bought is not None:
      score = score_purchase(
        self._browser.bought, self._browser.chosen.values(), self._goal
      )
      return Step((), score.reward, Status.COMPLETED, score.metrics)
    self._observation = self._read_page()
    content = self._describe(f"Action: {action}\n\nObservation:\n")
    return self._continue(
      Message("tool", content, tool_call_id=self._last_call_id)
    )

  def _continue(self, *messages: Message) -> Step:
    """Returns `messages`, or ends the session after the last round."""
    if self._rounds_left > 0:
      return Step(messages)
    # In the last round upstream sends this error message, but no page.
    unreadable = tuple(
      m for m in messages if m.content == prompts.UNREADABLE_CALL
    )
    end = Message(
      "tool", prompts.LIMIT_REACHED, tool_call_id=self._last_call_id
    )
    return Step(
      (*unreadable, end), status=Status.TASK_LIMIT_REACHED, metrics=NOT_BOUGHT
    )

  def _repeat_page(self) -> Message:
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


def parsed_again(action: str) -> tuple[str, str]:
  r"""Returns verb and value of an action as upstream's `(.+)\[(.+)\]` does.

  Upstream writes an action as text and parses it with this pattern, which loses
  actions with brackets or line breaks. The pattern takes time in the square of
  an action that has many brackets.
  """
  line = action.partition("\n")[0]
  end = line.rfind("]")
  start = line.rfind("[", 1, max(end - 1, 1))
  return (line[:start], line[start + 1 : end]) if start > 0 else ("", "")


def _first_argument(call: ToolCall) -> str | None:
  """Returns the first argument, of any name, as upstream does.

  Returns None if the text is no JSON object, or an empty one, and for a call
  that was not read, whose text may be any JSON.
  """
  if not call.name:
    return None
  try:
    arguments = json.loads(call.arguments)
  except (ValueError, RecursionError):
    return None
  if not isinstance(arguments, dict) or not arguments:
    return None
  return unicode_text(str(next(iter(arguments.values()))))
