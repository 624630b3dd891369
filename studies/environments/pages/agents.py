"""Plays pages against a run's server: an agent alone, or one with workers.

  agents.program="python -m studies.environments.pages.agents {url} {model}
    --form=planner --num_steps=short=2,long=3 --num_notes=20"

With `--form=alone` one agent reads every page, and all it has read is in its
context. With `--form=planner` a page is read by a worker in a context of its
own; the planner's context has the page's number alone, as in MATPO
(arXiv:2510.04678). Tools, texts and the reward are the same: 1 if the answer is
the end of the trail, else 0.

- An agent whose context is full ends the episode, as `agent context limit`.
- A worker whose context is full, or who has no answer in three calls, is
  reported to the planner, who may call another one.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import openai

from agentrl_jax.data.records import Status, Task, ToolCall, tool_to_json
from agentrl_jax.env.tools import ToolMistake, read_arguments
from agentrl_jax.errors import ConfigError
from studies.environments.pages import trail
from studies.environments.pages.environment import (
  ALONE,
  NO_CALL,
  PLANNER,
  TOOLS,
  WORKER,
  Pages,
)
from studies.environments.pages.trail import Trail

NUM_AGENTS = 16  # episodes at once
WORKER_CALLS = 3
SPARE_CALLS = 3  # of the others, beside one for each link and the answer
NO_WORKER = "The worker gave no answer."


class EpisodeEnds(Exception):
  """An episode that a limit ends; `status` says which."""

  def __init__(self, status: Status):
    super().__init__(status.value)
    self.status = status


class ContextFull(Exception):
  """A call that the server refused since the agent's context is full."""


@dataclasses.dataclass
class Counts:
  """Workers of an episode; metrics of its task."""

  workers: int = 0
  cut_workers: int = 0  # whose context was full
  silent_workers: int = 0  # who had no answer in their calls


class Player:
  """Plays one episode; `client` calls the run's server."""

  def __init__(
    self, client: openai.OpenAI, model: str, id: str, content: Trail, seed: int
  ):
    self._client, self._model, self._id = client, model, id
    self._trail = content
    self._seeds = itertools.count(seed)
    self.counts = Counts()

  def play(self, form: str) -> tuple[float, Status]:
    """Returns the reward, and how the episode ended."""
    most = self._trail.num_steps + 1 + SPARE_CALLS
    try:
      page = self._ask(form, self._trail.question, most)
    except ContextFull:
      return 0.0, Status.AGENT_CONTEXT_LIMIT
    except EpisodeEnds as ends:
      return 0.0, ends.status
    if page is None:
      return 0.0, Status.TASK_LIMIT_REACHED
    return float(page == self._trail.end), Status.COMPLETED

  def _ask(self, role: str, question: str, most: int) -> int | None:
    """Returns an agent's answer; None if it had none in `most` calls.

    Raises `ContextFull` if its context is.
    """
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(most):
      said = self._complete(role, messages)
      messages.append(said)
      calls = said.tool_calls or []
      if not calls:
        messages.append({"role": "user", "content": NO_CALL})
        continue
      name, arguments = calls[0].function.name, calls[0].function.arguments
      read = read_arguments(ToolCall(name, arguments), TOOLS)
      if isinstance(read, ToolMistake):
        reply = read.message
      elif name == "answer":
        return int(read["page"])
      elif role == PLANNER:
        reply = self._send_worker(int(read["page"]))
      else:
        reply = self._trail.text(int(read["page"]))
      messages.append(
        {"role": "tool", "tool_call_id": calls[0].id, "content": reply}
      )
    return None

  def _send_worker(self, page: int) -> str:
    """Sends a worker to a page; returns its answer as text."""
    self.counts.workers += 1
    try:
      found = self._ask(WORKER, trail.question(page, 1), WORKER_CALLS)
    except ContextFull:
      self.counts.cut_workers += 1
      return NO_WORKER
    if found is None:
      self.counts.silent_workers += 1
      return NO_WORKER
    return str(found)

  def _complete(self, role: str, messages: Sequence[Any]) -> Any:
    try:
      # Without seeds of their own, equal calls would get one answer.
      return (
        self._client.chat.completions.create(
          model=self._model,
          messages=list(messages),
          tools=[tool_to_json(tool) for tool in TOOLS],  # type: ignore[misc]
          seed=next(self._seeds),
          extra_headers={"X-AgentRL-Episode": self._id, "X-AgentRL-Role": role},
        )
        .choices[0]
        .message
      )
    except openai.APIStatusError as error:
      if error.code == "context_length_exceeded":
        raise ContextFull from error
      if error.code == "episode_turn_limit":
        raise EpisodeEnds(Status.TASK_LIMIT_REACHED) from error
      raise


class Agents:
  """Takes episodes from a run's server, and plays them."""

  def __init__(
    self,
    url: str,
    model: str,
    form: str,
    environments: Mapping[str, Pages],
    *,
    api_key: str | None = None,
  ):
    """Without an `api_key` it is that of the environment's OPENAI_API_KEY."""
    self._url, self._model, self._form = url, model, form
    self._environments = environments
    self._client = openai.OpenAI(  # one for all: to make one takes long
      base_url=url, api_key=api_key
    )

  def run(self) -> None:
    """Plays until no episode is offered."""
    with concurrent.futures.ThreadPoolExecutor(NUM_AGENTS) as pool:
      for played in [pool.submit(self._play_all) for _ in range(NUM_AGENTS)]:
        played.result()

  def _play_all(self) -> None:
    for episode in self._offered():
      try:
        self.play(episode)
      except openai.APIError:
        # A run that is not over offers the attempt again at once, where it
        # would wait `agents.idle_timeout_s` for an agent that says nothing.
        self._end(episode, reward=0.0, status=Status.CANCELLED.value)

  def _offered(self) -> Iterator[Mapping[str, Any]]:
    while episode := self._post("/episodes", wait_s=60):
      yield episode

  def play(self, episode: Mapping[str, Any]) -> None:
    """Plays an offered episode, and tells the server how it ended."""
    task = Task(**episode["task"])
    if task.name not in self._environments:
      raise ConfigError(
        f"an episode of task {task.name!r} was offered, and --num_steps names "
        f"{', '.join(self._environments)}: name every task of the run there"
      )
    content = self._environments[task.name].find(task)
    player = Player(
      self._client, self._model, episode["id"], content, episode["seed"]
    )
    reward, status = player.play(self._form)
    metrics = {
      "context_full": float(status is Status.AGENT_CONTEXT_LIMIT),
      **{k: float(v) for k, v in dataclasses.asdict(player.counts).items()},
    }
    self._end(episode, reward=reward, status=status.value, metrics=metrics)

  def _end(self, episode: Mapping[str, Any], **verdict: Any) -> None:
    self._post(f"/episodes/{episode['id']}", **verdict)

  def _post(self, path: str, **body: Any) -> Any:
    """Calls the run's server; None if the run is over."""
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(
      self._url + path, json.dumps(body).encode(), head
    )
    with (
      contextlib.suppress(OSError),
      urllib.request.urlopen(request, timeout=120) as response,
    ):
      return json.loads(response.read() or "null")
    return None


def read_steps(text: str, num_notes: int) -> dict[str, Pages]:
  """Reads `short=2,long=3`: the links to follow in each task of the run."""
  environments = {}
  for part in text.split(","):
    name, _, number = part.partition("=")
    if not name or not number.isdigit():
      raise ConfigError(
        f"--num_steps={text!r}: {part!r} is not NAME=NUMBER; write the tasks "
        "of the run as short=2,long=3"
      )
    environments[name] = Pages(num_steps=int(number), num_notes=num_notes)
  return environments


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line and plays."""
  parser = argparse.ArgumentParser(
    prog="python -m studies.environments.pages.agents"
  )
  parser.add_argument("url")
  parser.add_argument("model")
  parser.add_argument("--form", choices=(ALONE, PLANNER), required=True)
  parser.add_argument("--num_steps", required=True, help="short=2,long=3")
  parser.add_argument("--num_notes", type=int, required=True)
  given = parser.parse_args(arguments)
  environments = read_steps(given.num_steps, given.num_notes)
  Agents(given.url, given.model, given.form, environments).run()


if __name__ == "__main__":
  main()
