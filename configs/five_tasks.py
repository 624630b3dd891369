"""One small policy for AgentRL's five environments, on two cores.

  python -m environments.os_interaction.rootfs  # once: a Linux for its sandbox
  python -m launch.train --config=configs/five_tasks.py

The quickstart's policy and recipe with easy tasks of the other three: find one
thing in a room and put it where it belongs, follow one relation of a graph,
answer with one shell command.
"""

import ml_collections

from configs import environments, quickstart

# Texts that are one token each: what the answers copy. A small policy copies a
# token from its context long before it copies a text of several tokens. A test
# compares the words with the environments'.

# Rooms: of furniture and things of each type, a few with their number.
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
# An action is one token, or two: "take mug 1", " from shelf 2".
_ROOMS = (
  *(f" {name}" for name in (*FURNITURE.split(), *THINGS.split())),
  *(f" {name}" for name in (*_PLACES, *_THINGS)),
  *(f"{verb} {p}" for verb in ("go to", "open", "close") for p in _PLACES),
  *(f"{verb} {thing}" for verb in ("take", "put") for thing in _THINGS),
  *(f" {where} {p}" for where in ("from", "in/on") for p in _PLACES),
  *(f"examine {name}" for name in (*_PLACES, *_THINGS)),
  "Here is your task. You are in the middle of a room. Looking quickly around"
  " you, you see",
  ", you see",
  ", you see nothing.",
  " AVAILABLE ACTIONS: ",
  "\nYour task is to: put a",
  "\nYour task is to: put some",
  "\ninventory\nlook\n",
)

# Graphs: words of the names of entities, and relations. Whole names are too
# rare: a policy that met each in a handful of demonstrations cannot copy it.
FIRST_WORDS = (
  "Ada Boris Clara Dario Edith Felix Gina Hugo Ida Jonas Kira Lars Mona Nils "
  "Oona Pablo Ruth Stefan Thea Uwe Vera Walt Yara Zeno "
  "Amber Bitter Broken Distant Empty Frozen Gentle Hidden Hollow Ivory Last "
  "Little Lonely Narrow Pale Quiet Rapid Scarlet Second Silent Stolen Velvet "
  "classic cosmic electric folk gothic heroic ironic lyric modern mystic noir "
  "pastoral rustic satiric solar urban"
)
SECOND_WORDS = (
  "Abbott Bauer Castro Dietz Engel Faber Gomez Hansen Ibsen Jensen Keller Lund "
  "Moreau Nagy Ortiz Petrov Quinn Rossi Silva Torres Ulrich Vance Weber "
  "Anchor Arrow Beacon Candle Castle Desert Echo Feather Harbor Island Journey "
  "Lantern Letter Meadow Mirror Orchard Portrait River Shadow Summer Tide "
  "Voyage Window Winter "
  "ballad crime dance drama fable march mystery poem quest saga"
)
RELATIONS = tuple(
  f"{domain}.{type_}.{relation}"
  for domain, types in {
    "film": {
      "film": "directed_by featured_film_locations genre starring",
      "director": "favorite_genres film",
      "actor": "film places_lived",
      "film_genre": "fans films_in_this_genre",
      "film_location": "featured_in_films residents",
    },
    "book": {
      "book": "publisher subjects translated_by written_by",
      "author": "fields influenced influenced_by works_written",
      "publishing_company": "books_published translators",
      "book_subject": "experts works",
      "translator": "books_translated employers",
    },
    "spaceflight": {
      "rocket": "crew engines launch_sites manufacturer",
      "rocket_engine": "designed_by used_by",
      "rocket_manufacturer": "engines_designed rockets",
      "launch_site": "rockets_launched trainees",
      "astronaut": "flown_on trained_at",
    },
    "sports": {
      "sports_team": "arena_stadium coaches roster",
      "pro_athlete": "mentors positions teams",
      "coach": "athletes_mentored former_positions teams_coached trains_at",
      "sports_facility": "coaches teams",
      "position": "coaches players",
    },
  }.items()
  for type_, relations in types.items()
  for relation in relations.split()
)
_GRAPHS = (
  *FIRST_WORDS.split(),
  *(f" {word}" for word in SECOND_WORDS.split()),
  *RELATIONS,
  *sorted({name.rpartition(".")[0] for name in RELATIONS}),  # types
  "\nEntities: [",
  "Observation: [",
  "Observation: variable ",
  ", which are instances of ",
  ", which is a number",
  "Final Answer: ",
)

_CALLS = (
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
  '", "relation": "',
  '", "variable2": "',
)
WHOLE_TOKENS = tuple(
  dict.fromkeys(
    (
      *quickstart.WHOLE_TOKENS,
      *_ROOMS,
      *_GRAPHS,
      *_CALLS,
      "Now, I will start a new problem in a new OS. My problem is:\n\n",
      "The output of the OS:\n\n",
    )
  )
)


def get_config():
  """`quickstart`, with three more tasks."""
  c = quickstart.get_config()
  c.name = "five_tasks"
  c.tasks.names = environments.NAMES
  _set_environments(c.environments)
  c.tokenizer.update(vocab_size=6144, whole_tokens=WHOLE_TOKENS)
  c.warm_start.num_demonstrations = 20_000
  c.episode.update(max_turns=10, max_tokens=512)
  c.train.update(steps=120, row_length=512, micro_batch=5)
  c.admission.update(groups_per_step=40, max_concurrent_groups=30)
  c.queue.max_groups = 40
  c.engine.update(context=512, prefill_chunks=(16, 64))
  # Many, so that a rise of ten points shows in each task and seed.
  c.evaluation.update(num_tasks=512, num_sampled=256)
  return c


def _set_environments(known: ml_collections.ConfigDict) -> None:
  """Makes the three that the quickstart leaves out as easy as its own."""
  known.alfworld.options.update(
    system_prompt="short",
    task_types=("pick_and_place_simple",),
    num_receptacles=(4, 4),
    num_things=(4, 5),
    max_rounds=8,
  )
  # Its planner knows where things are, and a policy has to look for them.
  known.alfworld.mistakes.update(search=1.0, wrong_place=0.55, wander=0.1)
  known.knowledgegraph.options.update(
    system_prompt="short",
    kinds=("hop", "count"),
    num_hops=(1, 1),
    num_entities=(5, 6),
    max_rounds=6,
  )
  known.knowledgegraph.mistakes.update(wrong_relation=0.45, stop_early=0.3)
  known.os_interaction.options.update(
    engine="sandbox",
    system_prompt="short",
    kinds=("count_files", "words", "largest", "permissions"),
    difficulty=(1, 1),
    max_rounds=4,
  )
  known.os_interaction.mistakes.update(slip=0.5, off_by_one=0.2)
