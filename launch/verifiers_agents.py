r"""Plays a verifiers environment as the agents of a run, which trains on it.

  python -m launch.train --config=CONFIG --config.agents.port=0 \
    --config.agents.program=".venv-verifiers/bin/python -m \
    launch.verifiers_agents {url} {model} my-env --env.agent.harness.id=null"

Runs in a virtual environment of its own that has verifiers 0.4 (`make
verifiers`, or pip install 'verifiers==0.4.0' and, with --no-deps, this project)
and the package of the task set.
It takes episodes of the run, plays each task by verifiers' own harness and
runtime, under the episode's id, and reports reward and metrics:

- Flags are those of `vf-eval` that say which tasks are played, and how: the
  name of the task set, `--env.*`, `--select.*`, `--max-concurrent`. An agent
  whose runtime is not named runs here: verifiers' default is a paid sandbox.
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
import pathlib
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx

HEADER = "X-AgentRL-Episode"
TEST_SHARE = 0.1
NUM_WORKERS = 8  # unless --max-concurrent says otherwise
# Until the program ends, and the run starts it again: verifiers keeps an HTTP
# client for each episode's header.
MOST_EPISODES = 2_000
_READ = {"env", "select", "sampling", "max_concurrent"}  # fields of vf-eval
_WAIT_S, _TIMEOUT_S = 30.0, 120.0
_CANCELLED = {"reward": 0.0, "status": "cancelled"}
# What the run's server refuses, by its code, and the status that it is.
_ENDS = {
  "context_length_exceeded": "agent context limit",
  "episode_turn_limit": "task limit reached",
}


def verdict_of(traces: Sequence[Any], *, is_ok: bool) -> dict[str, Any]:
  """Returns the body that ends an episode, of verifiers' traces of it."""
  if not traces:
    return _CANCELLED
  if len(traces) != 1:
    names = ", ".join(str(trace.agent.name) for trace in traces)
    raise SystemExit(
      f"the environment has {len(traces)} agents ({names}), and each would be "
      "trained on; take one whose episodes have one agent"
    )
  (trace,) = traces
  scores = {name: r.score for name, r in trace.rewards.items() if r is not None}
  metrics = {
    name: float(value)
    for name, value in (scores | trace.metrics).items()
    if value is not None and math.isfinite(value)
  }
  said = " ".join(error.message for error in trace.errors)
  for code, status in _ENDS.items():
    if code in said:
      return {"reward": 0.0, "status": status, "metrics": metrics}
  if not is_ok or not math.isfinite(trace.reward):
    return _CANCELLED | {"error": said}
  return {"reward": trace.reward, "metrics": metrics}


class TaskSplit:
  """Tasks of a split, read as far as they are asked for."""

  def __init__(self, name: str, tasks: Iterable[Any]):
    self._left, self._read = iter(tasks), list[Any]()
    if self[0] is None:
      raise SystemExit(
        f"the task set leaves no task for {name}: give --test, such as "
        "--test='{\"seed\": 1}', or more tasks"
      )

  def __getitem__(self, index: int) -> Any:
    """Returns a task, modulo their number; None without any."""
    missing = max(index + 1 - len(self._read), 0)
    self._read += itertools.islice(self._left, missing)
    return self._read[index % len(self._read)] if self._read else None


def split_tasks(
  tasks: Iterable[Any], test: Iterable[Any] | None = None
) -> dict[str, TaskSplit]:
  """Returns train and test, of one task set or of two."""
  if test is not None:
    return {"train": TaskSplit("train", tasks), "test": TaskSplit("test", test)}
  first, second = itertools.tee(tasks)
  return {
    "train": TaskSplit("train", itertools.filterfalse(_is_test, first)),
    "test": TaskSplit("test", filter(_is_test, second)),
  }


def _is_test(task: Any) -> bool:
  return zlib.crc32(str(task.key).encode()) < TEST_SHARE * 2**32


def read_config(argv: Sequence[str]) -> Any:
  """Returns the config of vf-eval that its flags say."""
  from pydantic_config import cli
  from verifiers.v1 import SubprocessConfig
  from verifiers.v1.cli import resolve
  from verifiers.v1.configs.agent import agent_config_fields
  from verifiers.v1.configs.cli.eval import EvalConfig

  flags = resolve.with_positional_taskset(list(argv))
  sys.argv = [sys.argv[0], *flags]  # of which `cli` tells what is wrong
  with resolve.plugin_errors():
    config = cli(resolve.narrow_config(EvalConfig, flags))
  if not config.env.taskset.id:
    raise SystemExit("name a task set behind the model, such as marble-v1")
  given = config.model_fields_set
  if unread := sorted(given - _READ):
    raise SystemExit(
      f"{', '.join(unread)} of vf-eval would have no effect in a run; of its "
      f"flags, {', '.join(sorted(_READ))} are read here"
    )
  if "max_concurrent" not in given:
    config.max_concurrent = NUM_WORKERS
  for name, agent in agent_config_fields(config.env).items():
    if "runtime" not in agent.model_fields_set:
      agent = agent.model_copy(update={"runtime": SubprocessConfig()})
      setattr(config.env, name, agent)
  return config


class Agents:
  """Workers that play episodes of a run until there are no more."""

  def __init__(self, url: str, model: str, config: Any, test: Any):
    import verifiers.v1 as vf

    self._url, self._model, self._config, self._vf = url, model, config, vf
    self._env = vf.load_environment(config.env)
    tasks, own = self._env.taskset.select(config.select), config.env.taskset
    if test is None:
      self._splits = split_tasks(tasks)
    else:
      other = type(own).model_validate(own.model_dump() | test)
      held_out = vf.load_taskset(other).select(config.select)
      self._splits = split_tasks(tasks, held_out)
    self._num_left = MOST_EPISODES

  async def play(self) -> None:
    """Plays until the run offers no more episodes."""
    key = os.environ.get("OPENAI_API_KEY", "-")
    async with (
      httpx.AsyncClient(
        timeout=_TIMEOUT_S,
        headers={"Authorization": f"Bearer {key}"},
        trust_env=False,
      ) as self._http,
      self._env.serving(),
      asyncio.TaskGroup() as group,
    ):
      for _ in range(self._config.max_concurrent or NUM_WORKERS):
        group.create_task(self._work())

  async def _work(self) -> None:
    while self._num_left > 0:
      self._num_left -= 1
      episode = await self._post("/episodes", wait_s=_WAIT_S)
      if episode is None:
        return
      if "error" in episode:
        raise SystemExit(f"the run offers no episode: {episode}")
      id, task = episode["id"], episode["task"]
      body = await self._verdict(self._splits[task["split"]][task["index"]], id)
      answer = await self._post(f"/episodes/{id}", **body)
      if answer and "error" in answer:  # nothing sampled, an immense reward
        sys.stderr.write(f"episode {id} is cancelled: {answer}\n")
        await self._post(f"/episodes/{id}", **_CANCELLED)

  async def _verdict(self, task: Any, id: str) -> dict[str, Any]:
    client = self._vf.EvalClientConfig(
      base_url=self._url, api_key_var="OPENAI_API_KEY", headers={HEADER: id}
    )
    context = self._vf.ModelContext(
      model=self._model, client=client, sampling=self._config.sampling
    )
    episode = await self._env.run_episode(task, context)
    for source in (episode, *episode.traces):
      for error in source.errors:
        sys.stderr.write(f"episode {id}: {error.type}: {error.message}\n")
    return verdict_of(episode.traces, is_ok=episode.ok)

  async def _post(self, path: str, **body: Any) -> Mapping[str, Any] | None:
    """Returns the server's answer; None if there is none, or no server."""
    try:
      response = await self._http.post(self._url + path, json=body)
    except httpx.HTTPError:
      return None
    return None if response.status_code == 204 else dict(response.json())


def main() -> None:
  """Parses the command line and plays."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    epilog="Then come the task set and flags of vf-eval.",
    allow_abbrev=False,
  )
  parser.add_argument("url", help="of the run's server, up to /v1")
  parser.add_argument("model", help="the run's name")
  parser.add_argument(
    "--test", type=json.loads, help="JSON object: other settings of test"
  )
  known, flags = parser.parse_known_args()
  # verifiers prepares programs by uv, which is installed beside it.
  own = pathlib.Path(sys.executable).parent
  os.environ["PATH"] = f"{own}{os.pathsep}{os.environ.get('PATH', '')}"
  try:
    config = read_config(flags)
  except ImportError as error:
    raise SystemExit(
      f"{sys.executable} cannot import what verifiers 0.4 has ({error}): `make "
      "verifiers` makes .venv-verifiers, whose Python can"
    ) from error
  asyncio.run(Agents(known.url, known.model, config, known.test).play())


if __name__ == "__main__":
  main()
