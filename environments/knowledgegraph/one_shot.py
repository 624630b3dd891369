"""The solved example that AgentBench shows before its test questions.

Kept as it is, with its slips: an intersection with a variable that is not there
yet, a brace too many, one id for all calls.
"""

from agentrl_jax.data.messages import Message, ToolCall

_CALL_ID = "call_bl80SGcnZhRLsKtoFIUNR80D"


def _asked(thought: str, name: str, arguments: str) -> Message:
  call = ToolCall(name, arguments, id=_CALL_ID)
  return Message("assistant", thought, tool_calls=(call,))


def _told(observation: str) -> Message:
  return Message("tool", observation, tool_call_id=_CALL_ID)


ONE_SHOT = (
  Message(
    "user",
    "Question: the bipropellant rocket engine with kerosene and gas-generator "
    "cycle is designed by who? \n"
    "Entities: [Gas-generator cycle, Kerosene]",
  ),
  _asked(
    "Thought: I need to first find engines with gas-generator cycle. To "
    "achieve this, I will query the KB to find relations connected to the "
    "entity 'Gas-generator cycle' and see if any of them can help me find the "
    "answer.",
    "get_relations",
    '{"variable":"Gas-generator cycle"}',
  ),
  _told(
    "Observation: [spaceflight.rocket_engine_cycle.rocket_engines, "
    "spaceflight.satellite.orbiting, spaceflight.rocket_stage.fuel, "
    "spaceflight.satellite_manufacturer.spacecraft_manufactured, "
    "automotive.fuel.engines]",
  ),
  _asked(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine_cycle.rocket_engines to find the engines of "
    "Gas-generator cycle.",
    "get_neighbors",
    '{"variable":"Gas-generator cycle", "relation": '
    '"spaceflight.rocket_engine_cycle.rocket_engines}"}',
  ),
  _told(
    "Observation: variable #0, which are instances of "
    "spaceflight.bipropellant_rocket_engine",
  ),
  _asked(
    "Thought: I also need to find engines with kerosene. To achieve this, I "
    "will query the KB to find relations connected to the entity 'Kerosene",
    "get_relations",
    '{"variable":"Kerosene"}',
  ),
  _told(
    "Observation: "
    "[spaceflight.satellite_manufacturer.spacecraft_manufactured, "
    "automotive.fuel.engines, spaceflight.rocket_engine_cycle.rocket_engines]",
  ),
  _asked(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine_cycle.rocket_engines to find engines with "
    "kerosene cycle.",
    "get_neighbors",
    '{"variable":"Kerosene", "relation": '
    '"spaceflight.rocket_engine_cycle.rocket_engines}"}',
  ),
  _told(
    "Observation: variable #1, which are instances of "
    "spaceflight.bipropellant_rocket_engine",
  ),
  _asked(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine_cycle.rocket_engines to find engines with "
    "kerosene cycle.",
    "intersection",
    '{"variable1":"#0", "variable2": "#2"}',
  ),
  _told(
    "Observation: variable #2, which are instances of "
    "spaceflight.bipropellant_rocket_engine",
  ),
  _asked(
    "Thought: From the above relations, I might use "
    "spaceflight.rocket_engine.designed_by to find the designer of the "
    "engines.",
    "get_neighbors",
    '{"variable":"#2", "relation": "spaceflight.rocket_engine.designed_by"}',
  ),
  _told(
    "Observation: variable #3, which are instances of "
    "pspaceflight.rocket_engine_designer",
  ),
  Message(
    "assistant",
    "Thought: #3 is the final answer to the question, which represents the "
    "target rocket engine designer. Final Answer: #3",
  ),
)
