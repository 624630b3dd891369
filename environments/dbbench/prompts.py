"""Defines the prompts, tools and replies that the policy reads.

The texts are AgentBench's to the letter, so that results are comparable. The
short system prompt is for policies too small to read the long one.
"""

from agentrl_jax.data.records import Message
from agentrl_jax.env.tools import make_tool
from environments.dbbench.problem import DBProblem

EXECUTE_SQL = make_tool(
  "execute_sql",
  "Executes a given SQL statement on the database and returns the result.",
  {"query": "The SQL query to be executed."},
)
COMMIT_FINAL_ANSWER = make_tool(
  "commit_final_answer",
  "Commits the final answer after all operations are completed.",
  {
    "answers": {
      "type": "array",
      "items": {"type": "string"},
      "description": "The list of final answers to commit.",
    }
  },
)
TOOLS = (EXECUTE_SQL, COMMIT_FINAL_ANSWER)

NO_CALL = "Internal error: No tool calls found despite finish reason."
BAD_CALL = "Error: Failed to parse tool call. Tool call format is incorrect."
# Replies of execute_sql if its arguments are an empty object, or no object.
NO_ARGUMENT = "Error executing query: list index out of range"
NO_VALUES = "Error executing query: '{}' object has no attribute 'values'"
UNKNOWN_CALL = "Invalid function call. Please call a tool instead."

# Each text is one line of the prompt.
_UPSTREAM = (
  "I will ask you a question, then you should help me operate a MySQL database "
  "with SQL to answer the question.",
  "You have to explain the problem and your solution to me and write down your "
  "thoughts.",
  "After thinking and explaining thoroughly, every round you can choose to "
  "operate or to answer with the two specific tools provided.",
  "If you should execute a SQL query, use the `execute_sql` function, Your SQL "
  "should be in one line.",
  "Every time you can only execute one SQL statement. I will only execute the "
  "statement in the first SQL code block. Every time you write a SQL, I will "
  "execute it for you and give you the output.",
  "If you are done operating, and you want to commit your final answer, then "
  "use the `commit_final_answer` function.",
  "DO NOT use this tool unless you are sure about your answer. I expect an "
  "accurate and correct answer.",
  "Your answer should be accurate. Your answer must be exactly the same as the "
  "correct answer.",
  "If the question is about modifying the database, then after done operation, "
  "your answer field can be anything.",
  "If your response cannot match any pattern I mentioned earlier, you will be "
  "judged as FAIL immediately.",
  "You should always use the tools provided to submit your answer. Be careful "
  "not to write it in the content field.",
  "Your input will be raw MySQL response, you have to deal with it by "
  "yourself.",
)
SYSTEM_PROMPTS = {
  "upstream": "\n".join(_UPSTREAM),
  "short": "Answer with SQL on a MySQL table whose columns are all TEXT.",
}


def opening(problem: DBProblem, system_prompt: str) -> tuple[Message, ...]:
  """Returns the first messages of a session."""
  lines = [
    f"Additional table information about the question: {problem.description}"
    if problem.description
    else "",
    f"Question: {problem.question}",
  ]
  if problem.evidence:
    lines.insert(0, f"Evidence about the question: {problem.evidence}")
  text = "".join(f"{line}\n" for line in lines if line)
  return (
    Message("system", SYSTEM_PROMPTS[system_prompt]),
    Message("user", text),
  )
