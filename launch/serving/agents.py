"""Serves agents of any library by OpenAI's API, in the learner's process.

Agents take an episode, make their calls under its id, and report its reward:
see docs/serving.md. They get the same tasks as our own players, so groups,
queue and learner do not differ.
"""

import contextlib
import dataclasses
import functools
import pathlib
import shlex
import shutil
import socket
from collections.abc import AsyncIterator

from agentrl_jax.controller.cross_policy import NEVER
from agentrl_jax.data.records import EpisodeSpec, Trajectory
from agentrl_jax.errors import ConfigError
from agentrl_jax.http_requests import cannot_listen
from agentrl_jax.rollout.drivers.driver import Driver
from agentrl_jax.rollout.openai.episodes.episode import (
  EpisodeRules,
  PolicySlotDraw,
)
from agentrl_jax.rollout.openai.episodes.offers import Episodes
from agentrl_jax.rollout.openai.models import ModelNames
from agentrl_jax.rollout.openai.routes import OpenAIApi, OpenAIModel
from agentrl_jax.rollout.openai.schema import ServingLimits
from agentrl_jax.rollout.server.app import RolloutApi, listening
from agentrl_jax.rollout.server.auth import read_token
from agentrl_jax.rollout.server.state import ServerState
from launch.config.settings import Settings
from launch.processes.terminal import plain_console
from launch.serving.agent_program import LAST_BYTES, AgentProgram, last_lines
from launch.serving.service import Service

CONSOLE = plain_console(soft_wrap=True)
LOG = "agent_program.log"
_FLAGS = "--config.agents.port (0 is any free one) or --config.agents.host"


def require_startable(settings: Settings) -> None:
  """Refuses, before the first stage, a port in use and a program not here."""
  agents = settings.agents
  if agents.port > 0:
    family = socket.AF_INET6 if ":" in agents.host else socket.AF_INET
    try:
      socket.create_server((agents.host, agents.port), family=family).close()
    except OSError as error:
      raise cannot_listen(agents.host, agents.port, _FLAGS, error) from error
  command = shlex.split(agents.program)[:1]
  if command and shutil.which(command[0]) is None:
    raise ConfigError(
      f"agents.program={agents.program!r} cannot be started: there is no "
      f"program {command[0]!r} here. Give one of this machine's"
    )


class AgentServer:
  """The agents' server, in the loop that plays.

  While it serves, `episodes` plays what is trained on.
  """

  episodes: Episodes

  def __init__(
    self,
    settings: Settings,
    service: Service,
    name: str,
    folder: pathlib.Path,
    draw: PolicySlotDraw = NEVER,
  ):
    self._settings, self._service = settings, service
    self._folder = folder  # of the run; for the log of the agents' program
    self._names = ModelNames(name, lambda: service.status().policy_slots)
    self._limits = ServingLimits(context=settings.engine.context)
    self._rules = EpisodeRules(
      limits=settings.episode,
      temperature=settings.sampling.temperature,
      idle_timeout_s=settings.agents.idle_timeout_s,
      max_lines=settings.agents.max_lines,
      calls=settings.sampling.calls,
    )
    self._draw = draw

  def evaluated(self, temperature: float) -> "OfferedPlayer":
    """Returns a player of evaluations, of policy slot 0."""
    rules = dataclasses.replace(self._rules, temperature=temperature)
    return OfferedPlayer(self, rules, NEVER)

  @contextlib.asynccontextmanager
  async def serving(self) -> AsyncIterator[None]:
    """Answers within the context; `ConfigError` for a port in use."""
    self.episodes = Episodes(
      self._rules, self._limits, self._draw, self._last_lines
    )
    driver, agents = self._service.driver, self._settings.agents
    api = RolloutApi(
      self._service.generator,
      self._service.status,
      context=self._limits.context,
      openai=self._openai,
      http=self._settings.http,
      token=read_token(agents.token_file),
      slots=None if driver is None else functools.partial(_slots, driver),
      is_final=driver is not None,
    )
    async with listening(api, agents.host, agents.port, _FLAGS) as port:
      url = f"http://{agents.host}:{port}/v1"
      CONSOLE.print(f"agents play {self._names.name} at {url}")
      try:
        async with self._program(url):
          yield
      finally:
        await self.episodes.close()

  def _program(self, url: str) -> contextlib.AbstractAsyncContextManager[None]:
    """Runs the agents' program, if the run is to start it."""
    agents = self._settings.agents
    if not agents.program:
      return contextlib.nullcontext()
    log = self._folder / LOG
    CONSOLE.print(f"agents' program: {agents.program}; it writes to {log}")
    program = AgentProgram(
      agents.program, log, token=read_token(agents.token_file)
    )
    return program.running(
      url.replace("//0.0.0.0:", "//127.0.0.1:"),
      self._names.name,
      num_finished=lambda: self.episodes.counts["finished"],
      num_offered=lambda: self.episodes.num_offered,
      fail=self.episodes.fail,
    )

  def _last_lines(self) -> str:
    """Returns what the program wrote last; "" if the run starts none."""
    log = self._folder / LOG
    if not self._settings.agents.program or not log.exists():
      return ""
    return f"{last_lines(log, LAST_BYTES // 2)}\n(in {log})"

  def report(self) -> dict[str, float]:
    """Returns counts of the episodes so far, by how they ended."""
    counts = self.episodes.counts
    return {
      "agents/offered": self.episodes.num_offered,
      "agents/playing": self.episodes.num_played,
      "agents/finished": counts["finished"],
      "agents/abandoned": counts["abandoned"],
      "agents/cut": counts["cut"],
      "agents/lines": counts["lines"] / max(counts["finished"], 1),
      "agents/thoughts_dropped": counts["dropping"],
    }

  def _openai(self, answering: ServerState) -> OpenAIApi:
    return OpenAIApi(
      self._service.generator,
      answering,
      [OpenAIModel(self._names, self._limits, lambda: self._service.codec)],
      self.episodes,
    )


@dataclasses.dataclass(frozen=True)
class OfferedPlayer:
  """Offers episodes of an evaluation; a `controller.player.Player`."""

  server: AgentServer
  rules: EpisodeRules
  draw: PolicySlotDraw

  @property
  def look_at(self) -> str:
    """The part of an error message for a wait in which no episode ends."""
    taken = self.server.episodes.counts["taken"]
    return f"the agents, who took {taken} episodes, and the engine"

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """See `Episodes.play`."""
    return await self.server.episodes.play(
      spec, rules=self.rules, draw=self.draw
    )


def require_agents(settings: Settings) -> None:
  """Raises `ConfigError` if the config lets no agents in."""
  if not settings.agents.play:
    raise ConfigError(
      "agents are to play, and agents.port=-1 lets none in: set "
      "--config.agents.port (0 is any free one), and --config.agents.program "
      "if the command is to start theirs"
    )


def _slots(driver: Driver) -> tuple[int, ...]:
  return driver.engine.stats().num_active
