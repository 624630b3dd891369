r"""Plays a verifiers environment as the agents of a run, which trains on it.

  python -m launch.train --config=CONFIG --config.agents.port=0 \
    --config.agents.program=".venv-verifiers/bin/python -m \
    launch.verifiers_agents {url} {model} --taskset=my-env"

Runs in an environment of its own that has verifiers 0.4 (`make verifiers`) and
the package of the task set, and needs nothing else of this one. It takes
episodes of the run, plays each task by verifiers' own harness and runtime,
under the episode's id, and reports reward and metrics:

- Index i of the run's task is task i of its split, modulo their number. A tenth
  of the tasks is the split test, by the hash of their key, unless --test says
  how the config of its task set differs.
- An episode that verifiers does not hold for a result is cancelled, and the run
  offers it again; a limit of the run that ended it is the policy's doing.
- An environment of several agents is refused: each would be trained on.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

HEADER = "X-AgentRL-Episode"
TEST_SHARE = 0.1
# Of an infinite task set; and episodes until the program ends, and the run
# starts it again: verifiers keeps an HTTP client for each episode's header.
MOST_TASKS, MOST_EPISODES = 10_000, 2_000
# Of the agent, unless --env says otherwise: verifiers' own is a paid sandbox.
LOCAL = {"agent": {"runtime": {"type": "subprocess"}}}
_WAIT_S, _TIMEOUT_S = 30.0, 120.0
# What the run's server refuses, by its code, and the status that it is.
_ENDS = {
  "context_length_exceeded": "agent context limit",
  "episode_turn_limit": "task limit reached",
}


def verdict_of(traces: Sequence[Any], *, is_ok: bool) -> dict[str, Any]:
  """Returns the body that ends an episode, of verifiers' traces of it."""
  if len(traces) != 1:
    names = ", ".join(str(trace.agent.name) for trace in traces)
    raise SystemExit(
      f"the environment has {len(traces)} agents ({names}), and each would be "
      "trained on; take one whose episodes have one agent"
    )
  (trace,) = traces
  metrics = {
    name: float(value)
    for name, value in trace.metrics.items()
    if value is not None and math.isfinite(value)
  }
  said = " ".join(error.message for error in trace.errors)
  ended_by = [status for code, status in _ENDS.items() if code in said]
  if ended_by:
    return {"reward": 0.0, "status": ended_by[0], "metrics": metrics}
  if not is_ok or not math.isfinite(trace.reward):
    return {"reward": 0.0, "status": "cancelled"}
  return {"reward": trace.reward, "metrics": metrics}


def split_tasks(tasks: Sequence[Any]) -> dict[str, list[Any]]:
  """Returns train and test of one task set."""
  splits: dict[str, list[Any]] = {"train": [], "test": []}
  for task in tasks:
    is_test = zlib.crc32(str(task.key).encode()) < TEST_SHARE * 2**32
    splits["test" if is_test else "train"].append(task)
  return splits


class Agents:
  """Workers that play episodes of a run until there are no more."""

  def __init__(self, arguments: argparse.Namespace, vf: Any, http: Any):
    self._arguments, self._vf, self._http = arguments, vf, http
    self._env = self._load({})
    test = arguments.test
    if test is None:
      self._tasks = split_tasks(self._first(self._env))
    else:
      self._tasks = {
        "train": self._first(self._env),
        "test": self._first(self._load(test)),
      }
    if missing := [name for name, tasks in self._tasks.items() if not tasks]:
      raise SystemExit(
        f"{arguments.taskset} leaves no task for {' and '.join(missing)}: give "
        "--test, such as --test='{\"seed\": 1}', or more tasks"
      )
    self._num_left = MOST_EPISODES

  async def play(self) -> None:
    """Plays until the run offers no more episodes."""
    async with self._env.serving(), asyncio.TaskGroup() as group:
      for _ in range(self._arguments.concurrency):
        group.create_task(self._work())

  async def _work(self) -> None:
    while self._num_left > 0:
      self._num_left -= 1
      offered = await self._post("/episodes", wait_s=_WAIT_S)
      if offered is None:
        return
      tasks = self._tasks[offered["task"]["split"]]
      task = tasks[offered["task"]["index"] % len(tasks)]
      body = await self._verdict(task, offered["id"])
      await self._end(offered["id"], body)

  async def _verdict(self, task: Any, id: str) -> dict[str, Any]:
    vf = self._vf
    client = vf.EvalClientConfig(
      base_url=self._arguments.url,
      api_key_var="OPENAI_API_KEY",
      headers={HEADER: id},
    )
    context = vf.ModelContext(model=self._arguments.model, client=client)
    episode = await self._env.run_episode(task, context)
    for error in (
      *episode.errors,
      *(e for t in episode.traces for e in t.errors),
    ):
      sys.stderr.write(f"episode {id}: {error.type}: {error.message}\n")
    if not episode.traces:
      return {"reward": 0.0, "status": "cancelled"}
    return verdict_of(episode.traces, is_ok=episode.ok)

  async def _end(self, id: str, body: Mapping[str, Any]) -> None:
    answer = await self._post(f"/episodes/{id}", **body)
    code = ((answer or {}).get("error") or {}).get("code")
    if code == "episode_empty":  # nothing was sampled: not the policy's doing
      await self._post(f"/episodes/{id}", reward=0.0, status="cancelled")
    elif code not in (None, "episode_ended"):
      raise SystemExit(f"the run refuses the end of {id}: {answer}")

  async def _post(self, path: str, **body: Any) -> dict[str, Any] | None:
    """Returns the server's answer; None if there is none, or no server."""
    url = self._arguments.url + path
    try:
      response = await self._http.post(url, json=body)
    except OSError:
      return None
    return None if response.status_code == 204 else dict(response.json())

  def _load(self, changes: Mapping[str, Any]) -> Any:
    arguments, vf = self._arguments, self._vf
    settings = {"id": arguments.taskset, **arguments.settings, **changes}
    config = {"taskset": settings, **arguments.env}
    return vf.load_environment(vf.resolve_env_config(config))

  def _first(self, env: Any) -> list[Any]:
    return list(itertools.islice(env.taskset, MOST_TASKS))


async def _play(arguments: argparse.Namespace) -> None:
  try:
    import httpx
    import verifiers.v1 as vf
  except ImportError as error:
    raise SystemExit(
      f"{sys.executable} cannot import verifiers 0.4 ({error}): `make "
      "verifiers` makes .venv-verifiers, whose Python has it"
    ) from error
  token = os.environ.get("OPENAI_API_KEY", "")
  headers = {"Authorization": f"Bearer {token}"} if token else {}
  async with httpx.AsyncClient(
    timeout=_TIMEOUT_S, headers=headers, trust_env=False
  ) as http:
    await Agents(arguments, vf, http).play()


def main() -> None:
  """Parses the command line and plays."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  add = parser.add_argument
  add("url", help="of the run's server, up to /v1")
  add("model", help="the run's name")
  add("--taskset", required=True, help="id of an installed task set")
  for name, default, text in (
    ("settings", {}, "of the task set"),
    ("env", LOCAL, "of the environment: its agent's harness and runtime"),
  ):
    add(f"--{name}", type=json.loads, default=default, help=f"JSON: {text}")
  add("--test", type=json.loads, help="JSON object: other settings of test")
  add("--concurrency", type=int, default=8, help="episodes at a time")
  asyncio.run(_play(parser.parse_args()))


if __name__ == "__main__":
  main()
