"""Texts that the policy reads, and its tool.

All are AgentBench's to the letter, so that scores can be compared, but for the
short system prompt, which saves tokens of small models.
"""

from collections.abc import Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.tools import make_tool

TAKE_ACTION = make_tool(
  "take_action",
  "Take an action.",
  {"action": "The action you would like to take"},
)
TOOLS = (TAKE_ACTION,)

NO_CALL = "No executable tool calls found. Please call a tool instead"
BAD_CALL = "No valid tool calls found. Please call a tool instead."

_UPSTREAM = (
  "Interact with a household to solve a task. Imagine you are an intelligent "
  "agent in a household environment and your target is to perform actions to "
  "complete) the task goal. At the beginning of your interactions, you will be "
  "given the detailed description of the current environment and your goal to "
  "accomplish. A tool will be provided for you to use to submit the action you "
  "want to take. This tool is the only tool you should and must take in order "
  "to operate any action in the environment. The way you perform action is to "
  "place the action chosen by you in the arguments field of your tool call. "
  "For each of your turn, you will be given a list of actions which you can "
  "choose one to perform in this turn. The action you would like to take "
  'should be offered in this format: "the name of your next action", and you '
  "should fill it in the argument field of your tool call. Note that you "
  "should always call a tool to operate an action from the given choices. "
  "After your each turn, the environment will give you immediate feedback "
  "based on which you plan your next few steps. if the environment output "
  '"Nothing happened", that means the previous action is invalid and you '
  "should try more options.",
  " Reminder:",
  "1. the action must be chosen from the given available actions. Any actions "
  "except provided available actions will be regarded as illegal.",
  "2. Always call the tool to hand in your next action and think when "
  "necessary.",
)
SYSTEM_PROMPTS = {
  "upstream": "\n".join(_UPSTREAM),
  "short": "You are in a household. Do the task, one available action a turn.",
}


def opening(
  intro: str, commands: Sequence[str], system_prompt: str
) -> tuple[Message, ...]:
  """Writes the first messages of a session, without the engine's banner."""
  _, *paragraphs = intro.split("\n\n")
  text = "Here is your task. " + "\n".join(paragraphs)
  return (
    Message("system", SYSTEM_PROMPTS[system_prompt]),
    Message("user", text + available(commands)),
  )


def reply(feedback: str, commands: Sequence[str]) -> str:
  """Writes the reply to an action: its feedback and the next actions."""
  if feedback.startswith("You arrive at loc "):
    feedback = feedback[feedback.find(". ") + 2 :]
  return feedback + available(commands)


def available(commands: Sequence[str]) -> str:
  """Writes the list of actions that ends every reply."""
  return " AVAILABLE ACTIONS: " + "\n".join(commands) + "\n"
