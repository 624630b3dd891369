"""Prompts, tools and fixed replies of WebShop."""

from agentrl_jax.data.records import Tool
from agentrl_jax.env.tools import make_tool

# Upstream's text, slips included, which policies trained elsewhere know.
UPSTREAM = """
You are web shopping.
I will give you instructions about what to do.
You have to follow the instructions.
Every round I will give you an observation and a list of available actions,
you have to respond with calling a tool provided based on the state and instruction.
You can use search tool if search is available.
You can click one of the buttons in clickables.
If the action is not valid, perform nothing.
Keywords in search are up to you, but the value in click must be a value in the list of available actions.
Remember that your keywords in search should be carefully designed.
Your should first think about what to do, then call a tool correspondingly.
You should always use a tool, even if you have questions to confirm. You can use whatever tool is available and do not need permission from the user.
"""  # noqa: E501 (upstream's line breaks)
SHORT = "Buy what is asked for. Search, click, choose options, buy now."
SYSTEM_PROMPTS = {"upstream": UPSTREAM, "short": SHORT}

SEARCH, KEYWORDS = "search_action", "keywords"
CLICK, VALUE = "click_action", "value"

NO_CALL = "No executable tool calls found! You should call a tool instead."
UNREADABLE_CALL = "No valid tool call found from agent."
LIMIT_REACHED = "Task limit reached."


def make_tools(*, described: bool) -> tuple[Tool, ...]:
  """Makes upstream's two tools, with or without its descriptions."""

  def make(name: str, description: str, argument: str, meaning: str) -> Tool:
    if described:
      return make_tool(name, description, {argument: meaning})
    return make_tool(name, "", {argument: {"type": "string"}})

  return (
    make(
      SEARCH,
      "Use search functionality with specified keywords.",
      KEYWORDS,
      "The keywords to use in the search function.",
    ),
    make(
      CLICK,
      "Click a button or link with a specified value.",
      VALUE,
      "The value to click from the list of available actions.",
    ),
  )
