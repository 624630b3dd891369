"""AgentRL's five environments: class, options, mistakes and place.

`options` are keyword arguments of the class that `target` names, described in
its docstring. `mistakes` are the probabilities of the mistakes that the expert
of demonstrations makes. Values are AgentRL's where it has one; otherwise those
that run on any machine: engines in this process, and generated tasks.
"""

from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections.config_dict import create, placeholder

NAMES = ("alfworld", "dbbench", "knowledgegraph", "os_interaction", "webshop")


def get_config() -> ml_collections.ConfigDict:
  """Returns all five, by name."""
  return create(
    alfworld=_alfworld(),
    dbbench=_dbbench(),
    knowledgegraph=_knowledgegraph(),
    os_interaction=_os_interaction(),
    webshop=_webshop(),
  )


def entry(
  target: str,
  *,
  options: Mapping[str, Any] | None = None,
  mistakes: Mapping[str, float] | None = None,
) -> ml_collections.ConfigDict:
  """Returns the section of an environment, with every key that it has.

  `c.environments.NAME = entry(...)` adds an environment, or a variant of one;
  NAME is its name in tasks, metrics and reports.
  """
  return create(
    target=target,  # module:Class
    options=ml_collections.ConfigDict(options),
    mistakes=ml_collections.ConfigDict(mistakes),
    place=create(  # where sessions are played
      containers=0,  # of its image; 0 and no address: in this process
      image="",  # "" is <containers.registry>/<folder of the environment>
      options=(),  # that differ at these places, as "engine=mariadb"
      worker="",  # http://host:port/api of a running worker
      # http://host:port/api of a controller whose workers are called NAME; of
      # several, separated by commas.
      controller="",
      # Of the controller's clients, or of the worker: a file whose first line
      # is the token, or env:NAME; "" sends none.
      token_file="",
    ),
  )


def _alfworld() -> ml_collections.ConfigDict:
  return entry(
    target="environments.alfworld:ALFWorld",  # module:Class
    options=create(
      # AgentBench's list of games; "" takes all in `games`. Here and below: a
      # file, a folder, or NAME=PATH,NAME=PATH, each a split of its own.
      source="",
      games="",  # ALFWorld's own files; "" is $ALFWORLD_DATA, if set
      engine="python",  # or "textworld": needs the extra `alfworld`
      max_rounds=20,
      system_prompt="upstream",  # or "short"
      upstream_quirks=False,
      num_receptacles=(8, 32),  # of a generated room: least, most
      num_things=(10, 48),  # in a generated room
    ),
    mistakes=create(
      search=0.0,
      wrong_thing=0.0,
      wrong_place=0.0,
      forget=0.0,
      wander=0.0,  # this and those below: per turn
      repeat=0.0,
      prose=0.0,
      inexact=0.0,
    ),
  )


def _dbbench() -> ml_collections.ConfigDict:
  return entry(
    target="environments.dbbench:DBBench",
    options=create(
      source="",  # AgentBench's rows; "" generates tasks
      engine="sqlite",  # or "mariadb"
      server="",  # host:port of a MariaDB; "" starts one
      max_rounds=15,
      max_result_chars=800,
      statement_limit_s=60.0,
      system_prompt="upstream",  # or "short"
      upstream_quirks=False,  # grade with AgentBench's known mistakes
      num_rows=(4, 8),  # of a generated table: least, most
      num_columns=(3, 5),
      num_tables=(1, 1),  # that a question joins: least, most
      kinds=placeholder(tuple),  # of questions, as ("sum", "update"); None: all
    ),
    mistakes=create(
      no_cast=0.0,
      no_where=0.0,
      wrong_column=0.0,
      count_for_sum=0.0,
      wrong_order=0.0,
      drop_last_value=0.0,
      wrong_literal=0.0,
      raw_reply=0.0,
      no_query=0.0,
    ),
  )


def _knowledgegraph() -> ml_collections.ConfigDict:
  return entry(
    target="environments.knowledgegraph:KnowledgeGraph",
    options=create(
      source="",  # AgentBench's questions; "" generates tasks
      ontology="",  # AgentBench's folder; "" is the one beside `source`
      graph="",  # FB15k-237.tar.gz, to ask about real facts
      entity_names="",  # entity2text.txt; "" is the one beside `graph`
      engine="memory",  # or "oxigraph", "sparql"
      server="",  # the URL of a SPARQL endpoint
      max_rounds=15,
      query_limit_s=30.0,
      system_prompt="upstream",  # or "short"
      one_shot=False,  # begin with a solved example, as AgentBench's std
      upstream_quirks=False,
      num_hops=(1, 2),  # of a generated question: least, most
      num_entities=(8, 14),  # of each type in a generated world
    ),
    mistakes=create(
      skip_relations=0.0,
      wrong_relation=0.0,
      wrong_attribute=0.0,
      wrong_order=0.0,
      no_intersection=0.0,
      stop_early=0.0,
      wrong_variable=0.0,
    ),
  )


def _os_interaction() -> ml_collections.ConfigDict:
  return entry(
    target="environments.os_interaction:OSInteraction",
    options=create(
      source="",  # AgentBench's tasks; "" generates tasks
      engine="docker",  # or "sandbox": Linux namespaces, no engine
      image="",  # of the containers; "" is agentrl_jax/os_interaction
      rootfs="",  # of the sandbox; "" is the one in the user's cache
      num_warm=4,  # machines started ahead of their sessions
      max_rounds=8,
      command_limit_s=30.0,
      memory_mb=1024,
      cpus=2.0,
      pids=256,
      disk_mb=512,
      network=False,
      system_prompt="upstream",  # or "short"
      upstream_quirks=False,
      difficulty=(1, 3),  # of a generated task: least, most
    ),
    mistakes=create(
      slip=0.0,
      no_look=0.0,
      sentence=0.0,
      off_by_one=0.0,
      finish=0.0,
      no_call=0.0,
    ),
  )


def _webshop() -> ml_collections.ConfigDict:
  return entry(
    target="environments.webshop:WebShop",
    options=create(
      products=placeholder(str),  # a file of listings; None generates shops
      attributes=placeholder(str),  # upstream's items_ins_v2.json
      instructions=placeholder(str),  # upstream's items_human_ins.json
      cache=placeholder(str),  # where large files are kept ready
      upstream_splits=False,  # tasks by their place among upstream's goals
      upstream_quirks=False,
      num_train=1 << 20,  # tasks
      num_test=1 << 16,
      catalogue_size=100,  # products of a generated shop
      tasks_per_catalogue=8,
      # Of generated shops: easy, siblings, prices, paraphrases or hard, which
      # is all three.
      difficulty="hard",
      max_siblings=3,  # of easy and paraphrases: alike but for price, options
      max_rounds=20,
      system_prompt="upstream",  # or "short"
      results_per_page=10,
      expert_names_options=False,  # in its search, not only by clicks
      repeat_instruction=True,  # on every page
      repeat_item=True,  # after an option is chosen
      list_actions=True,  # what can be clicked, below every page
      show_headings=True,
      show_navigation=True,
      show_subpages=True,
    ),
    mistakes=create(
      lazy_search=0.0,
      first_result=0.0,
      ignore_price=0.0,
      settle=0.0,
      skip_last_option=0.0,
      wrong_option=0.0,
    ),
  )
