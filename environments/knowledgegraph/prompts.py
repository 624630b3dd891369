"""What a KnowledgeGraph session says to the policy, and the tools it offers.

AgentBench's words are kept to the letter, trailing spaces included: policies
are compared on them. The short system prompt is for policies too small to read
the long one.
"""

from collections.abc import Iterable, Mapping

from agentrl_jax.data.messages import Message, Tool
from environments.knowledgegraph.one_shot import ONE_SHOT


def _tool(name: str, description: str, parameters: Mapping[str, str]) -> Tool:
  """A tool whose parameters are all text, and all needed."""
  return Tool(
    name,
    description,
    {
      "type": "object",
      "properties": {
        parameter: {"type": "string", "description": text}
        for parameter, text in parameters.items()
      },
      "required": list(parameters),
      "additionalProperties": False,
    },
  )


TOOLS = (
  _tool(
    "get_relations",
    "Fetches all relations associated with a given entity or variable, which "
    "helps in navigating the Knowledge Base (KB) to find useful connections.",
    {
      "variable": (
        "The entity or variable whose relations are to be fetched. Should be "
        "an existing entity or a result of a previous query."
      ),
    },
  ),
  _tool(
    "get_neighbors",
    "Returns all entities connected to a given variable through a specified "
    "relation, can only be used after identifying valid relations with "
    "get_relations().",
    {
      "variable": ("The subject entity or variable to find neighbors for."),
      "relation": (
        "The relationship through which neighbors are connected to the subject."
      ),
    },
  ),
  _tool(
    "intersection",
    "Computes the intersection of two sets of entities or variables of the "
    "same type.",
    {
      "variable1": ("The first set of entities or a variable."),
      "variable2": ("The second set of entities or a variable."),
    },
  ),
  _tool(
    "get_attributes",
    "Retrieves all numerical attributes of a given variable, especially "
    "valuable when seeking for entities with extreme attributes (max or min).",
    {
      "variable": (
        "The variable whose numerical attributes are to be fetched."
      ),
    },
  ),
  _tool(
    "argmax",
    "Finds the entity with the maximum value of the specified attribute, can "
    "be used after identifying valid attributes with get_attributes().",
    {
      "variable": (
        "The variable or set of entities among which to find the maximum."
      ),
      "attribute": ("The attribute to maximize over the entities."),
    },
  ),
  _tool(
    "argmin",
    "Finds the entity with the minimum value of the specified attribute, can "
    "be used after identifying valid attributes with get_attributes().",
    {
      "variable": (
        "The variable or set of entities among which to find the minimum."
      ),
      "attribute": ("The attribute to minimize over the entities."),
    },
  ),
  _tool(
    "count",
    "Counts the number of entities within a given variable.",
    {
      "variable": ("The variable or set of entities to count."),
    },
  ),
)

NO_CALL = "No valid function calls found! Need to recheck the function calls."
UNKNOWN_CALL = (
  "Provide an invalid function name. Function {name} does not exist"
)
BAD_ARGUMENTS = (
  "Arguments do not match the function signature. Error processing arguments "
  "for {name}"
)
FAILED_CALL = "Error processing tool call: {error}"

SYSTEM_PROMPTS = {
  # {max_round} is what the policy is told of the limit.
  "upstream": (
    " \n"
    "You are an intelligent agent tasked with answering questions based on "
    "the knowledge stored in a \n"
    "knowledge base (KB). You can utilize several tools to probe the KB and "
    "retrieve relevant \n"
    "information to answer the questions posed to you.\n"
    "Use the tools provided effectively to navigate through the KB, find "
    "relationships, \n"
    "attributes, and intersections where applicable, and determine the most "
    "pertinent \n"
    "information to answer the questions.\n"
    "Remember:\n"
    "- A variable can be an entity or a set of entities as results from "
    "previous queries.\n"
    "- You should always ensure the tool used is appropriate for the "
    "question's demands and \n"
    "follow the logical order where necessary (e.g., fetch relations before "
    "finding neighbors).\n"
    "- After a variable is produced along the process, you need to judge "
    "whether a variable is \n"
    "the final answer to the question. Each variable is represented as an id "
    "starting from 0. \n"
    "For example, #0 is the first variable, #1 is the second variable, and so "
    "on.\n"
    "- Once you identify the final answer to the question, respond with "
    "'Final Answer: #id' \n"
    "where id is the identifier of the variable you determine to be the final "
    "answer. For \n"
    "example, if you think #3 is the final answer, you MUST respond with "
    "'Final Answer: #3'. Do\n"
    "not call tools regarding the commission of final answer!!!\n"
    "- You need to execute one action at a time and can perform a maximum of "
    "{max_round} actions to find\n"
    "the answer.\n"
    "- You should use the supplied tools unless the final answer is "
    "identifies.\n"
    "Your thoughtful application of these tools and careful consideration of "
    "the interactions \n"
    "will guide you to the correct answers.\n"
    "Note that you must finish the task in {max_round} rounds! Arrange your "
    "attempts according to it!\n"
  ),
  "short": (
    "Answer with the tools. Each result is a variable: #0, #1, and so on. End "
    "with the words Final Answer: #k."
  ),
}


def opening(
  question: str,
  names: Iterable[str],
  *,
  system_prompt: str,
  max_rounds: int,
  one_shot: bool,
) -> tuple[Message, ...]:
  """The messages that a session begins with."""
  instructions = SYSTEM_PROMPTS[system_prompt].format(max_round=max_rounds)
  return (
    Message("system", instructions),
    *(ONE_SHOT if one_shot else ()),
    Message("user", f"{question}\nEntities: [{', '.join(names)}]"),
  )
