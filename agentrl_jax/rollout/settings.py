"""The `engine` and `rollouts` sections of the config."""

import dataclasses
import re
import shlex

from agentrl_jax.bearer_token import read_token
from agentrl_jax.errors import ConfigError

# Of the slots of a call, those whose drafts a step computes: one in so many.
_DRAFTING_SHARES = (8, 2, 1)


@dataclasses.dataclass(frozen=True)
class DraftPlan:
  """The drafts of a decode call; see `rollout.engine.drafts`."""

  num_tokens: int  # of a draft
  sizes: tuple[int, ...]  # slots whose drafts one step computes, besides 0
  cost: float  # `draft_cost`


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
  """The `engine` section of the config: sizes, and the shapes to compile.

  Few shapes are compiled: busy slots are padded to `num_slot_sizes` sizes that
  differ by a factor of four, prompts are prefilled in `prefill_chunks`, and the
  cache has the shortest of `lengths` that fits its sequences. More shapes waste
  less computation and take longer to compile.
  """

  slots: tuple[int, ...]  # per policy slot: answers decoded at once
  context: int  # tokens of prompt and answer together
  lengths: tuple[int, ...]  # tokens; context is always one of them
  num_slot_sizes: int
  prefill_chunks: tuple[int, ...]  # tokens per slot and call
  prefill_slots: int  # per call
  prefill_tokens: int  # per step, so that decoding does not stall
  steps_per_sync: int  # tokens per slot and call
  reuse: bool  # keys and values of earlier turns and of the group
  # Tokens of a page of the KV cache, and of all pages of each policy slot. 0
  # and (): no pages; each slot has a row for `context` tokens.
  page_size: int
  cache_tokens: tuple[int, ...]
  # Tokens per policy slot in the prefix cache, on the device and on the host;
  # its keys and values outlive their slot, in shared blocks. 0: none.
  prefix_cache_tokens: int
  prefix_cache_host_tokens: int
  block_size: int
  # Older weights per policy slot that are kept for answers that started with
  # them; 0: answers go on with the newest.
  old_weights: int
  # Number of devices of each policy slot; (): all policy slots on all devices.
  slices: tuple[int, ...]
  # Tokens that are guessed ahead and computed with the next one; 0: none.
  draft_tokens: int
  # Time to compute one draft token more per slot, in units of a decode step.
  draft_cost: float

  def __post_init__(self) -> None:
    for name in ("slots", "prefill_chunks"):
      sizes = getattr(self, name)
      if not sizes or min(sizes) < 1:
        raise ConfigError(f"engine.{name}={sizes}: sizes must be positive")
    for name in (
      "context",
      "num_slot_sizes",
      "prefill_slots",
      "prefill_tokens",
      "steps_per_sync",
    ):
      if getattr(self, name) < 1:
        raise ConfigError(
          f"engine.{name}={getattr(self, name)} must be at least 1"
        )
    if tuple(sorted(set(self.prefill_chunks))) != self.prefill_chunks:
      raise ConfigError(
        f"engine.prefill_chunks={self.prefill_chunks} must be increasing"
      )
    if (
      self.lengths
      and not 1 <= min(self.lengths) <= max(self.lengths) <= self.context
    ):
      raise ConfigError(
        f"engine.lengths={self.lengths} must lie between 1 and "
        f"engine.context={self.context}"
      )
    if self.slices and (
      len(self.slices) != len(self.slots) or min(self.slices) < 1
    ):
      raise ConfigError(
        f"engine.slices={self.slices} must have a number of devices for each "
        f"of the policy slots of engine.slots={self.slots}, or be () for all "
        "policy slots on all devices"
      )
    self._check_prefix_cache()
    self._check_pages()
    self._check_drafts()

  def _check_pages(self) -> None:
    if self.page_size < 0:
      raise ConfigError(
        f"engine.page_size={self.page_size} must be a number of tokens, or 0 "
        "for a row per slot"
      )
    if not self.page_size:
      if self.cache_tokens:
        raise ConfigError(
          f"engine.cache_tokens={self.cache_tokens} is unused without pages: "
          "set engine.page_size, or engine.cache_tokens=()"
        )
      return
    if (
      len(self.cache_tokens) != len(self.slots)
      or min(self.cache_tokens) < self.page_size
    ):
      raise ConfigError(
        f"engine.cache_tokens={self.cache_tokens} must have a number of tokens "
        f"for each of the policy slots of engine.slots={self.slots}, each at "
        f"least engine.page_size={self.page_size}; without pages, set engine."
        "page_size=0"
      )
    for name, sizes in (
      ("context", (self.context,)),
      ("lengths", self.lengths),
      ("cache_tokens", self.cache_tokens),
    ):
      if any(size % self.page_size for size in sizes):
        raise ConfigError(
          f"engine.{name}={getattr(self, name)} must be a multiple of engine."
          f"page_size={self.page_size}, as a cache of pages has no parts of one"
        )
    if self.prefix_cache_tokens:
      raise ConfigError(
        f"engine.prefix_cache_tokens={self.prefix_cache_tokens} is a second "
        f"cache, and pages (engine.page_size={self.page_size}) are reused "
        "where they are: set it to 0 and add its tokens to engine."
        "cache_tokens. Pages are not moved to the host"
      )

  def _check_drafts(self) -> None:
    if self.draft_tokens < 0:
      raise ConfigError(
        f"engine.draft_tokens={self.draft_tokens} must be at least 0 (none)"
      )
    if not 0 < self.draft_cost <= 1:
      raise ConfigError(
        f"engine.draft_cost={self.draft_cost} must be above 0, and at most 1: "
        "a draft token of a slot takes no longer than a decode step of it"
      )

  def _check_prefix_cache(self) -> None:
    for name in (
      "prefix_cache_tokens",
      "prefix_cache_host_tokens",
      "old_weights",
    ):
      if getattr(self, name) < 0:
        raise ConfigError(
          f"engine.{name}={getattr(self, name)} must be at least 0 (none)"
        )
    if self.prefix_cache_tokens:
      self._check_blocks()
    elif self.prefix_cache_host_tokens:
      raise ConfigError(
        f"engine.prefix_cache_host_tokens={self.prefix_cache_host_tokens} is "
        "unused without a prefix cache: set engine.prefix_cache_tokens, or "
        "engine.prefix_cache_host_tokens=0"
      )

  def _check_blocks(self) -> None:
    if not self.reuse:
      raise ConfigError(
        f"engine.prefix_cache_tokens={self.prefix_cache_tokens} is unused with "
        "engine.reuse=False; set it to 0"
      )
    if not 1 <= self.block_size <= self.prefix_cache_tokens:
      raise ConfigError(
        f"engine.block_size={self.block_size} must lie between 1 and "
        f"engine.prefix_cache_tokens={self.prefix_cache_tokens}"
      )
    for size in (self.context, *self.lengths):
      if size % self.block_size:
        name = "context" if size == self.context else "lengths"
        raise ConfigError(
          f"engine.{name} has {size}, which must be a multiple of engine."
          f"block_size={self.block_size} with a prefix cache"
        )

  @property
  def has_pages(self) -> bool:
    """True if the KV cache is a pool of pages; else it has a row per slot."""
    return self.page_size > 0

  def num_pages(self, policy_slot: int) -> int:
    """Number of pages of a policy slot."""
    return self.cache_tokens[policy_slot] // self.page_size

  @property
  def prefix_cache_blocks(self) -> tuple[int, int]:
    """Blocks of the prefix cache on device and host, per policy slot."""
    return (
      self.prefix_cache_tokens // self.block_size,
      self.prefix_cache_host_tokens // self.block_size,
    )

  @property
  def min_copied_tokens(self) -> int:
    """Least number of tokens that are copied rather than prefilled again."""
    return self.prefill_chunks[0]

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    return len(self.slots)

  def slot_sizes(self, num_slots: int) -> tuple[int, ...]:
    """Sizes that busy slots are padded to."""
    sizes = {-(-num_slots // 4**power) for power in range(self.num_slot_sizes)}
    return tuple(sorted(sizes))

  def decode_size(self, num_slots: int, num_busy: int, num_steps: int) -> int:
    """Number of slots to decode: all in place, or the busy ones taken out.

    Taking slots out and putting them back costs about as much as six decode
    steps of these slots (measured on a CPU, 0.9 M params and more, 256 tokens
    per slot). Pages are not taken out.
    """
    sizes = [n for n in self.slot_sizes(num_slots) if n >= num_busy]
    moving = 0 if self.has_pages else 6
    return min(
      sizes, key=lambda n: n * (num_steps + (0 if n == num_slots else moving))
    )

  def draft_plan(self, num_rows: int) -> DraftPlan | None:
    """Shapes of the drafts in a call of `num_rows` slots; None without."""
    if not self.draft_tokens:
      return None
    sizes = {-(-num_rows // share) for share in _DRAFTING_SHARES}
    return DraftPlan(self.draft_tokens, tuple(sorted(sizes)), self.draft_cost)

  @property
  def tokens_per_call(self) -> int:
    """Most tokens that a slot samples in one decode call."""
    return self.steps_per_sync * (1 + self.draft_tokens)

  def cache_length(self, num_tokens: int) -> int:
    """The shortest compiled length of the cache that fits `num_tokens`."""
    return min(
      size for size in (*self.lengths, self.context) if size >= num_tokens
    )

  def prefill_chunk(self, num_tokens: int) -> int:
    """The shortest chunk that fits `num_tokens`, or else the longest chunk."""
    return next(
      (size for size in self.prefill_chunks if size >= num_tokens),
      self.prefill_chunks[-1],
    )


PROTOCOLS = {
  "agentrl": "launch.serve_rollouts, in binary",
  "openai": "vLLM, and engines that complete token ids as it does",
  "sglang": "SGLang",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutsConfig:
  """The `rollouts` section of the config: engines in other processes.

  Without servers, the engine runs in the learner's process, and nothing else
  here is used.
  """

  servers: str  # host:port of each, separated by commas
  protocol: str  # one of `PROTOCOLS`
  model: str  # its name at other projects' engines; "": their first model
  # File whose first line is the servers' token, or env:NAME; "": none.
  token_file: str
  need_seeds: bool  # other projects' engines must honor seeds
  snapshots: str  # folder or bucket; "" is `snapshots` of the run
  max_lag: int  # updates that weights may be behind the learner's
  poll_interval_s: float  # of a server that reads the snapshots
  health_interval_s: float  # of checks of a server
  server_timeout_s: float  # a server that is silent longer is lost
  answer_timeout_s: float  # retries on other servers included
  sync_timeout_s: float  # until all servers serve what is evaluated
  start_timeout_s: float  # of a server without a first snapshot
  grace_s: float  # of a server that is stopped

  def __post_init__(self) -> None:
    for server in self.addresses:
      if not re.fullmatch(r"[^\s/:]+:\d+|\[[\da-fA-F:]+\]:\d+", server):
        raise ConfigError(
          f"rollouts.servers={self.servers!r} has {server!r}: name each as "
          "host:port, such as --config.rollouts.servers=10.0.0.1:7100,10.0.0.2:"
          "7100"
        )
    if len(set(self.addresses)) < len(self.addresses):
      raise ConfigError(
        f"rollouts.servers={self.servers!r} names a server twice"
      )
    self._check_protocol()
    if self.max_lag < 0:
      raise ConfigError(
        f"rollouts.max_lag={self.max_lag} must be 0 (all tokens are sampled "
        "from the learner's newest weights) or a number of updates"
      )
    for name, value in dataclasses.asdict(self).items():
      if name.endswith("_s") and not value > 0:
        raise ConfigError(f"rollouts.{name}={value} must be more than 0")

  def _check_protocol(self) -> None:
    if self.protocol not in PROTOCOLS:
      raise ConfigError(
        f"rollouts.protocol={self.protocol!r} is none of {', '.join(PROTOCOLS)}"
      )
    if self.protocol == "agentrl" and (self.model or not self.need_seeds):
      raise ConfigError(
        f"rollouts.model={self.model!r} and rollouts.need_seeds="
        f"{self.need_seeds} are read where rollouts.protocol is openai or "
        "sglang; keep their defaults for rollout servers of this framework"
      )

  @property
  def addresses(self) -> tuple[str, ...]:
    """The host:port of each server; empty for an engine in this process.

    A tuple in Python's notation is accepted too, since scripts may quote it.
    """
    parts = self.servers.strip(" ()").split(",")
    return tuple(part.strip(" '\"") for part in parts if part.strip())

  def read_token(self) -> str:
    """Reads the token of `token_file`; "" without. Raises `ConfigError`."""
    return read_token(self.token_file, "rollouts.token_file=")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentsConfig:
  """The `agents` section of the config: who plays in place of our players."""

  port: int  # of the learner's server; 0 is any; -1: there is none
  host: str
  token_file: str  # has the token that agents must know; "": none
  idle_timeout_s: float  # without a word from an agent: it is taken for gone
  max_lines: int  # of tokens, that an episode may have
  program: str  # that plays, started by the run; "": agents are elsewhere

  def __post_init__(self) -> None:
    if not -1 <= self.port < 2**16:
      raise ConfigError(
        f"agents.port={self.port} must be a port, 0 for any that is free, or "
        "-1 for no server"
      )
    if not self.idle_timeout_s > 0:
      raise ConfigError(
        f"agents.idle_timeout_s={self.idle_timeout_s} must be more than 0"
      )
    try:
      shlex.split(self.program)
    except ValueError as error:
      raise ConfigError(
        f"agents.program={self.program!r} is no command line: {error}. Write "
        "it as in a shell"
      ) from error
    if self.max_lines < 1:
      raise ConfigError(
        f"agents.max_lines={self.max_lines} must be at least 1: the "
        "conversation that each call continues"
      )

  @property
  def play(self) -> bool:
    """True if external agents play."""
    return self.port >= 0
