"""Prompts, replies and tools of OS sessions.

The texts are AgentBench's to the letter, so that scores can be compared. The
short system prompt is for policies too small to read the long one.
"""

from agentrl_jax.data.records import Message
from agentrl_jax.env.tools import make_tool

BASH_ACTION = make_tool(
  "bash_action",
  "Execute bash code to perform an operation in the Linux environment.",
  {"script": "The bash script to be executed."},
)
FINISH_ACTION = make_tool(
  "finish_action",
  "Indicate that the task has been finished or need some additional "
  "information to be finished.",
  {"thought": "The thought or reason indicating the task is finished."},
)
ANSWER_ACTION = make_tool(
  "answer_action",
  "Provide the answer to the question.",
  {"answer": "The answer to the question."},
)
TOOLS = (BASH_ACTION, FINISH_ACTION, ANSWER_ACTION)

NO_CALL = "No executable tool calls found. Please call a tool instead"
BAD_CALL = "Invalid function call. Please call a tool instead"
NEEDS_ANSWER = (
  "This problem asks for an answer. Call answer_action with it instead"
)
OUTPUT = "The output of the OS:\n\n{}"
NO_OUTPUT = "The output of the OS is empty."
MAX_CHARS = 800  # of an output; a longer one is cut to `KEPT_CHARS`
KEPT_CHARS = 780
CUT = "\n[truncated because the output is too long]"

# Lines of the system prompt.
_UPSTREAM = (
  "You are an assistant that will act like a person. I will play the role of a "
  "Linux (Ubuntu) operating system.",
  "Your goal is to implement the operations required by me or answer the "
  "questions proposed by me.",
  "For each of your turns, you should first think about what you should do, "
  "and then call exactly one of the provided tools according to the situation.",
  "If you think the output is too long, I will truncate it. The truncated "
  "output is not complete. You have to deal with the truncating problem by "
  "yourself.",
  "Attention, your bash code should not contain any input operation. Once "
  "again, you should use one tool in each turn, and should not respond without "
  "function calling.",
  "Note that if you think the task has been finished, or there is some message "
  "missing to completely complete the task, you should respond with calling "
  'the function "finish_action", as no additional information will be '
  "provided.",
  "Also, note that if you have gotten the answer to the question, you should "
  'call the "answer_action" tool instead of simply writing your answer in your '
  "response.",
  "Your answers should be exact and precise (for example, a single number), do "
  "not answer with full sentences or phrases.",
  "Always use a tool provided instead of simply responding with content.",
)
SYSTEM_PROMPTS = {
  "upstream": "\n".join(_UPSTREAM),
  "short": "Solve the problem with bash, as root of a Linux machine.",
}
_QUESTION = "Now, I will start a new problem in a new OS. My problem is:\n\n{}"


def opening(description: str, system_prompt: str) -> tuple[Message, ...]:
  """Returns the messages that a session begins with."""
  return (
    Message("system", SYSTEM_PROMPTS[system_prompt]),
    Message("user", _QUESTION.format(description)),
  )


def output(text: str, max_chars: int = MAX_CHARS) -> str:
  """Formats a script's output as a reply."""
  if len(text) > max_chars:
    text = text[: max_chars - MAX_CHARS + KEPT_CHARS] + CUT
  return OUTPUT.format(text) if text else NO_OUTPUT
