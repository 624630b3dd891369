"""Tools, prompts and fixed replies of KnowledgeGraph sessions.

They are AgentBench's to the letter, trailing spaces included, because policies
are compared on them. The short system prompt is for small policies, which the
long one would overload.
"""

from collections.abc import Iterable

from agentrl_jax.data.records import Message, ToolCall
from agentrl_jax.env.tools import make_tool

TOOLS = (
  make_tool(
    "get_relations",
    "Fetches all relations associated with a given entity or variable, which "
    "helps in navigating the Knowledge Base (KB) to find useful connections.",
    {
      "variable": (
        "The entity or variable whose relations are to be fetched. Should be "
        "an existing entity or a result of a previous query."
      )
    },
  ),
  make_tool(
    "get_neighbors",
    "Returns all entities connected to a given variable through a specified "
    "relation, can only be used after identifying valid relations with "
    "get_relations().",
    {
      "variable": "The subject entity or variable to find neighbors for.",
      "relation": (
        "The relationship through which neighbors are connected to the subject."
      ),
    },
  ),
  make_tool(
    "intersection",
    "Computes the intersection of two sets of entities or variables of the "
    "same type.",
    {
      "variable1": "The first set of entities or a variable.",
      "variable2": "The second set of entities or a variable.",
    },
  ),
  make_tool(
    "get_attributes",
    "Retrieves all numerical attributes of a given variable, especially "
    "valuable when seeking for entities with extreme attributes (max or min).",
    {"variable": "The variable whose numerical attributes are to be fetched."},
  ),
  make_tool(
    "argmax",
    "Finds the entity with the maximum value of the specified attribute, can "
    "be used after identifying valid attributes with get_attributes().",
    {
      "variable": (
        "The variable or set of entities among which to find the maximum."
      ),
      "attribute": "The attribute to maximize over the entities.",
    },
  ),
  make_tool(
    "argmin",
    "Finds the entity with the minimum value of the specified attribute, can "
    "be used after identifying valid attributes with get_attributes().",
    {
      "variable": (
        "The variable or set of entities among which to find the minimum."
      ),
      "attribute": "The attribute to minimize over the entities.",
    },
  ),
  make_tool(
    "count",
    "Counts the number of entities within a given variable.",
    {"variable": "The variable or set of entities to count."},
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
  "upstream": (
    " \nYou are an intelligent agent tasked with answering questions based on "
    "the knowledge stored in a \nknowledge base (KB). You can utilize several "
    "tools to probe the KB and retrieve relevant \ninformation to answer the "
    "questions posed to you.\nUse the tools provided effectively to navigate "
    "through the KB, find relationships, \nattributes, and intersections where "
    "applicable, and determine the most pertinent \ninformation to answer the "
    "questions.\nRemember:\n- A variable can be an entity or a set of entities "
    "as results from previous queries.\n- You should always ensure the tool "
    "used is appropriate for the question's demands and \nfollow the logical "
    "order where necessary (e.g., fetch relations before finding "
    "neighbors).\n- After a variable is produced along the process, you need "
    "to judge whether a variable is \nthe final answer to the question. Each "
    "variable is represented as an id starting from 0. \nFor example, #0 is "
    "the first variable, #1 is the second variable, and so on.\n- Once you "
    "identify the final answer to the question, respond with 'Final Answer: "
    "#id' \nwhere id is the identifier of the variable you determine to be the "
    "final answer. For \nexample, if you think #3 is the final answer, you "
    "MUST respond with 'Final Answer: #3'. Do\nnot call tools regarding the "
    "commission of final answer!!!\n- You need to execute one action at a time "
    "and can perform a maximum of {max_round} actions to find\nthe answer.\n- "
    "You should use the supplied tools unless the final answer is "
    "identifies.\nYour thoughtful application of these tools and careful "
    "consideration of the interactions \nwill guide you to the correct "
    "answers.\nNote that you must finish the task in {max_round} rounds! "
    "Arrange your attempts according to it!\n"
  ),
  "short": (
    "Answer with the tools. Each result is a variable: #0, #1, and so on. End "
    "with the words Final Answer: #k."
  ),
}


_CALL_ID = "call_bl80SGcnZhRLsKtoFIUNR80D"


def _call(thought: str, name: str, arguments: str) -> Message:
  call = ToolCall(name, arguments, id=_CALL_ID)
  return Message("assistant", thought, tool_calls=(call,))


def _observation(observation: str) -> Message:
  return Message("tool", observation, tool_call_id=_CALL_ID)


# AgentBench's solved example of its test questions, with its slips: an
# intersection with a variable that does not exist yet, a brace too many, and
# one id for all calls.
ONE_SHOT = (
  Message(
    "user",
    "Question: the bipropellant rocket engine with kerosene and gas-generator "
    "cycle is designed by who? \nEntities: [Gas-generator cycle, Kerosene]",
  ),
  _call(
    "Thought: I need to first find engines with gas-generator cycle. To "
    "achieve this, I will query the KB to find relations connected to the "
    "entity 'Gas-generator cycle' and see if any of them can help me find the "
    "answer.",
    "get_relations",
    '{"variable":"Gas-generator cycle"}',
  ),
  _observation(
    "Observation: [spaceflight.rocket_engine_cycle.rocket_engines, "
    "spaceflight.satellite.orbiting, spaceflight.rocket_stage.fuel, "
    "spaceflight.satellite_manufacturer.spacecraft_manufactured, "
    "automotive.fuel.engines]"
  ),
  _call(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine_cycle.rocket_engines to find the engines of "
    "Gas-generator cycle.",
    "get_neighbors",
    '{"variable":"Gas-generator cycle", "relation": '
    '"spaceflight.rocket_engine_cycle.rocket_engines}"}',
  ),
  _observation(
    "Observation: variable #0, which are instances of "
    "spaceflight.bipropellant_rocket_engine"
  ),
  _call(
    "Thought: I also need to find engines with kerosene. To achieve this, I "
    "will query the KB to find relations connected to the entity 'Kerosene",
    "get_relations",
    '{"variable":"Kerosene"}',
  ),
  _observation(
    "Observation: [spaceflight.satellite_manufacturer.spacecraft_manufactured, "
    "automotive.fuel.engines, spaceflight.rocket_engine_cycle.rocket_engines]"
  ),
  _call(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine_cycle.rocket_engines to find engines with "
    "kerosene cycle.",
    "get_neighbors",
    '{"variable":"Kerosene", "relation": '
    '"spaceflight.rocket_engine_cycle.rocket_engines}"}',
  ),
  _observation(
    "Observation: variable #1, which are instances of "
    "spaceflight.bipropellant_rocket_engine"
  ),
  _call(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine_cycle.rocket_engines to find engines with "
    "kerosene cycle.",
    "intersection",
    '{"variable1":"#0", "variable2": "#2"}',
  ),
  _observation(
    "Observation: variable #2, which are instances of "
    "spaceflight.bipropellant_rocket_engine"
  ),
  _call(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine.designed_by to find the designer of the "
    "engines.",
    "get_neighbors",
    '{"variable":"#2", "relation": "spaceflight.rocket_engine.designed_by"}',
  ),
  _observation(
    "Observation: variable #3, which are instances of "
    "pspaceflight.rocket_engine_designer"
  ),
  Message(
    "assistant",
    "Thought: #3 is the final answer to the question, which represents the "
    "target rocket engine designer. Final Answer: #3",
  ),
)


def opening(
  question: str,
  names: Iterable[str],
  *,
  system_prompt: str,
  max_rounds: int,
  one_shot: bool,
) -> tuple[Message, ...]:
  """Returns the first messages of a session."""
  instructions = SYSTEM_PROMPTS[system_prompt].format(max_round=max_rounds)
  return (
    Message("system", instructions),
    *(ONE_SHOT if one_shot else ()),
    Message("user", f"{question}\nEntities: [{', '.join(names)}]"),
  )
