"""Options of AgentBench's environments and of Harbor, with their defaults.

The only place of the defaults: the classes take the fields as keywords. Values
are AgentBench's where it has one; otherwise those that run on any machine.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl_jax.env.options import require_one_of, require_types
from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Options of every environment.

  `source` is a file, a folder, or NAME=PATH,NAME=PATH, each a split of its own
  (see `agentrl_jax.env.task_sets`).
  """

  max_rounds: int  # answers of the policy until the episode ends
  system_prompt: str = "upstream"  # or "short"
  upstream_quirks: bool = False  # with AgentBench's known mistakes
  num_tasks: int = 1 << 20  # of each split

  mistakes: ClassVar[tuple[str, ...]]  # that the expert makes on purpose

  def __post_init__(self) -> None:
    require_one_of(("upstream", "short"), system_prompt=self.system_prompt)
    require_types(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ALFWorldOptions(Options):
  """Options of ALFWorld."""

  source: str = ""  # AgentBench's list of games; "" takes all in `games`
  games: str = ""  # ALFWorld's own files; "" is $ALFWORLD_DATA, if set
  max_rounds: int = 20
  num_receptacles: tuple[int, int] = (8, 32)  # of a generated room: least, most
  num_things: tuple[int, int] = (10, 48)  # in a generated room
  task_types: Sequence[str] | None = None  # generated; None: all

  mistakes = (
    "search",  # does not know where things are, and looks for them
    "wrong_thing",  # first takes something else
    "wrong_place",  # first puts the thing where it does not belong
    "forget",  # does not clean, heat, cool or light
    # Those above are drawn once per episode, those below every turn.
    "wander",  # goes somewhere for no reason
    "repeat",  # repeats the last action
    "prose",  # writes the action as text and calls no tool
    "inexact",  # words the action in another way
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DBBenchOptions(Options):
  """Options of DBBench."""

  source: str = ""  # AgentBench's rows; "" generates tasks
  engine: Any = "sqlite"  # "mariadb", or a `DatabaseEngine`
  server: str = ""  # [user:password@]host:port of a MariaDB; "" starts one
  max_rounds: int = 15
  max_result_chars: int = 800  # at which replies are cut
  statement_limit_s: float = 60.0
  num_rows: tuple[int, int] = (4, 8)  # of a generated table: least, most
  num_columns: tuple[int, int] = (3, 5)
  num_tables: tuple[int, int] = (1, 1)  # that a question joins: least, most
  # Of questions, as ("sum", "update"); None: all, by the default mix.
  kinds: tuple[str, ...] | None = None

  mistakes = (
    "no_cast",  # compares numbers as text
    "no_where",  # forgets the condition
    "wrong_column",  # reads or writes another column
    "count_for_sum",  # counts rows instead of adding or averaging numbers
    "wrong_order",  # takes the lowest for the highest, or the reverse
    "drop_last_value",  # leaves the last value of a new row empty
    "wrong_literal",  # takes a value of another row for the condition
    "raw_reply",  # commits the text of the reply, not its values
    "no_query",  # commits without running a statement
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnowledgeGraphOptions(Options):
  """Options of KnowledgeGraph."""

  source: str = ""  # AgentBench's questions; "" generates tasks
  ontology: str = ""  # AgentBench's folder; "" is the one beside `source`
  server: str = ""  # URL of a SPARQL endpoint with the facts of `source`
  max_rounds: int = 15
  query_limit_s: float = 30.0  # of the endpoint
  one_shot: bool = False  # begin with a solved example, as AgentBench's std
  num_hops: tuple[int, int] = (1, 2)  # of a generated question: least, most
  num_entities: tuple[int, int] = (8, 14)  # of each type in a generated world
  kinds: Sequence[str] = ()  # of questions; () are all

  mistakes = (
    "skip_relations",  # never lists relations; harmless
    "wrong_relation",  # one hop follows another listed relation
    "wrong_attribute",  # compares by another listed attribute
    "wrong_order",  # swaps argmax and argmin
    "no_intersection",  # uses the first operand twice
    "stop_early",  # leaves out the last call, such as a count
    "wrong_variable",  # names the first variable
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineLimits:
  """Resources of one machine; memory and processors are AgentBench's."""

  memory_mb: int = 1024
  cpus: float = 2.0
  pids: int = 256
  disk_mb: int = 512  # written, beyond the image
  network: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OSInteractionOptions(Options, MachineLimits):
  """Options of OSInteraction, and the limits of its machines."""

  source: str = ""  # AgentBench's tasks; "" generates tasks
  scripts: str = ""  # the folder of AgentBench's scripts
  engine: Any = "docker"  # "sandbox" (Linux namespaces), or a `MachineEngine`
  image: str = ""  # of the containers; "" is agentrl_jax/os_interaction
  images: Mapping[str, str] | None = None  # by AgentBench's names
  rootfs: str = ""  # of the sandbox; "" is the one in the user's cache
  num_warm: int = 0  # machines started ahead of their sessions
  max_rounds: int = 8
  command_limit_s: float = 30.0  # of the policy's and the judge's scripts
  difficulty: tuple[int, int] = (1, 3)  # of a generated task: least, most
  kinds: Sequence[str] | None = None  # of generated tasks; None: all

  mistakes = (
    "slip",  # runs a script that is nearly right
    "no_look",  # answers, or says that it is done, without having run anything
    "sentence",  # answers with a sentence, not with the bare answer
    "off_by_one",  # answers with a number that is too high by one
    "finish",  # says that it is done, where an answer is asked for
    "no_call",  # begins with words alone, which costs a round and nothing else
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HarborOptions(MachineLimits):
  """Options of Harbor, and the limits of its machines.

  A task's own limits (`cpus`, `memory_mb`, `storage_mb`) replace those here.
  """

  # A folder of tasks, of which a tenth is the test, or train=PATH,test=PATH.
  source: str = ""
  skip: bool = False  # leave out tasks that cannot be played, with a warning
  engine: Any = "docker"  # "sandbox" (Linux namespaces), or a `MachineEngine`
  image: str = ""  # of `bases`; "" is agentrl_jax/os_interaction
  rootfs: str = ""  # of the sandbox; "" is the one in the user's cache
  # Names after FROM that stand for `image`, or for the sandbox's `rootfs`: the
  # rest of such a Dockerfile is carried out when a machine starts.
  bases: Sequence[str] = ("agentrl_jax/os_interaction",)
  num_warm: int = 0  # machines of `image` started ahead of their sessions
  max_rounds: int = 16  # answers of the policy until the episode ends
  command_limit_s: float = 30.0  # of one command of the policy
  # At most, of a run of the tests; a task's own limit may be shorter. Two runs
  # must fit in waits.reply_timeout_s.
  test_limit_s: float = 120.0
  max_output_chars: int = 2000  # of a reply

  mistakes: ClassVar[tuple[str, ...]] = (
    "nothing",  # finishes at once
    "no_call",  # begins with words alone, which costs a round and nothing else
  )

  def __post_init__(self) -> None:
    require_types(self)
    if self.max_output_chars < 100:
      raise ConfigError(
        f"max_output_chars={self.max_output_chars} must be 100 or more"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageStyle:
  """Content of WebShop's pages. The defaults are upstream's pages.

  Smaller pages make shorter episodes for policies with little context. Hidden
  buttons can still be clicked, except those of sub-pages.
  """

  results_per_page: int = 10
  separator: str = " [SEP] "  # between the texts of a page
  repeat_instruction: bool = True  # on every page, or on the first one alone
  repeat_item: bool = True  # show the item again after a chosen option
  list_actions: bool = True  # end with the list of clickable texts
  show_headings: bool = True  # the lines "Action: ..." and "Observation:"
  show_navigation: bool = True  # back, previous and next
  show_subpages: bool = True  # description, features, reviews and rating
  show_attributes: bool = False  # a sub-page that shows the answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebShopOptions(PageStyle, Options):
  """Options of WebShop; those from `num_train` on are of generated shops.

  Sizes of splits: a larger split begins with the tasks of a smaller one.
  """

  products: str = ""  # a file of listings; "" generates shops
  attributes: str = ""  # upstream's items_ins_v2.json
  human_instructions: str = ""  # upstream's items_human_ins.json
  upstream_splits: bool = False  # upstream's, of the goals that people wrote
  max_rounds: int = 20
  describe_tools: bool = True
  # Whether the expert's search names the wanted options, too. Listings are
  # indexed with them, so this finds the right product more often.
  expert_names_options: bool = False
  num_train: int = 11_000  # tasks
  num_test: int = 200
  catalogue_size: int = 100  # products of a shop
  tasks_per_catalogue: int = 8  # consecutive ones, which share a shop
  num_cached: int = 64  # shops in memory, a few hundred kB each
  # easy, siblings, prices, paraphrases or hard, which is all three; see
  # `generation.families.Difficulty`.
  difficulty: str = "hard"
  # In easy and paraphrases shops, the number of products that may share kind
  # and attributes, and differ in price and options alone; with 1 a good search
  # finds the right product.
  max_siblings: int = 3

  mistakes = (
    "lazy_search",  # searches for the kind only and reads one page of results
    "first_result",  # clicks the first result
    "ignore_price",  # does not compare the price with the limit
    "settle",  # buys although a wanted option is missing
    "skip_last_option",  # leaves the last option unchosen
    "wrong_option",  # chooses another value for the last option
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.separator:
      raise ConfigError("webshop separator is empty; texts would be joined")
