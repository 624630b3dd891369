"""One small policy for AgentRL's five environments, on two cores.

  python -m environments.os_interaction.rootfs  # once: a Linux for its sandbox
  python -m launch.train --config=configs/five_tasks.py

The quickstart's policy and recipe with easy tasks of the other three: find one
thing in a room and put it where it belongs, follow one relation of a graph,
answer with one shell command.
"""

import ml_collections

from configs import environments, quickstart

# Furniture and things of generated rooms. "drawer 2" is one token, and so is
# each action up to its preposition. A test compares them.
FURNITURE = (
  "armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop "
  "desk diningtable drawer dresser fridge garbagecan handtowelholder "
  "laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa "
  "stoveburner toaster toilet toiletpaperhanger towelholder tvstand"
)
THINGS = (
  "alarmclock apple baseballbat basketball book bowl box bread butterknife "
  "candle cd cellphone cloth creditcard cup dishsponge egg fork glassbottle "
  "handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan pen "
  "pencil peppershaker pillow plate plunger pot potato remotecontrol "
  "saltshaker soapbar soapbottle spatula spoon spraybottle statue tennisracket "
  "tissuebox toiletpaper tomato towel vase watch wateringcan winebottle"
)
_PLACES = tuple(
  f"{name} {n}" for name in FURNITURE.split() for n in range(1, 6)
)
_THINGS = tuple(f"{name} {n}" for name in THINGS.split() for n in range(1, 5))
WHOLE_TOKENS = (
  *quickstart.WHOLE_TOKENS,
  *_PLACES,
  *_THINGS,
  *(f"{verb} {p}" for verb in ("go to", "open", "close") for p in _PLACES),
  *(f"examine {name}" for name in (*_PLACES, *_THINGS)),
  *(f"{verb} {thing}" for verb in ("take", "put") for thing in _THINGS),
  *(" from ", " in/on ", "\ninventory\nlook\n", " AVAILABLE ACTIONS: "),
  "Here is your task. You are in the middle of a room. Looking quickly around"
  " you, you see ",
  *(
    ", you see ",
    ", you see nothing.",
    "\nYour task is to: put ",
    " put some ",
  ),
  *("Observation: variable ", ", which are instances of ", "Observation: ["),
  "Final Answer: ",
  "Now, I will start a new problem in a new OS. My problem is:\n\n",
  "The output of the OS:\n\n",
  *(
    f'\n{{"name": "{call}": "'
    for call in (
      'take_action", "arguments": {"action',
      'get_relations", "arguments": {"variable',
      'get_neighbors", "arguments": {"variable',
      'intersection", "arguments": {"variable1',
      'count", "arguments": {"variable',
      'bash_action", "arguments": {"script',
      'answer_action", "arguments": {"answer',
      'finish_action", "arguments": {"thought',
    )
  ),
  *('", "relation": "', '", "variable2": "'),
)


def get_config():
  """`quickstart`, with three more tasks."""
  c = quickstart.get_config()
  c.name = "five_tasks"
  c.tasks.names = environments.NAMES
  _set_environments(c.environments)
  c.tokenizer.update(
    vocab_size=6144,
    whole_tokens=tuple(dict.fromkeys(WHOLE_TOKENS)),
  )
  c.warm_start.num_demonstrations = 20_000
  c.episode.update(max_turns=10, max_tokens=512)
  c.train.update(row_length=512, micro_batch=5)
  c.admission.update(groups_per_step=40, max_concurrent_groups=30)
  c.queue.max_groups = 40
  c.engine.update(context=512, prefill_chunks=(16, 64))
  c.evaluation.num_tasks = 128
  return c


def _set_environments(known: ml_collections.ConfigDict) -> None:
  """Makes the three that the quickstart leaves out as easy as its own."""
  with known.unlocked():
    known.alfworld.options.task_types = ("pick_and_place_simple",)
    known.knowledgegraph.options.kinds = ("hop", "count")
    known.os_interaction.options.kinds = (
      "count_files",
      "words",
      "largest",
      "permissions",
    )
  known.alfworld.options.update(
    system_prompt="short",
    num_receptacles=(4, 5),
    num_things=(4, 5),
    max_rounds=8,
  )
  known.alfworld.mistakes.update(wrong_place=0.3, wander=0.15)
  known.knowledgegraph.options.update(
    system_prompt="short", num_hops=(1, 1), num_entities=(5, 6), max_rounds=6
  )
  known.knowledgegraph.mistakes.update(wrong_relation=0.45, stop_early=0.3)
  known.os_interaction.options.update(
    engine="sandbox", system_prompt="short", difficulty=(1, 1), max_rounds=4
  )
  known.os_interaction.mistakes.update(slip=0.5, off_by_one=0.2)
