"""Agents that know nothing of us but a `base_url` are trained."""

import asyncio
import json
import pathlib
import statistics
import sys
import tempfile
import unittest

import aiohttp
import numpy as np
import optax
import pytest

from agentrl_jax.controller.cross_policy import NEVER
from agentrl_jax.controller.evaluation import evaluate
from agentrl_jax.controller.groups.group import (
  GroupLimits,
  RetryLimits,
  run_group,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError, DeadlineExceeded
from agentrl_jax.model import sharding
from agentrl_jax.rollout.openai.episodes.offers import HEADER
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.train_batch import BatchConfig
from agentrl_jax.train.weights.publish import Publisher
from configs import finetune
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from launch.serving.agents import OfferedPlayer, require_agents
from tests import programs
from tests.launch import tiny
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL
from tests.launch.serving import agents
from tests.rollout import talking
from tests.train import small

TEMPERATURE = 0.9
GROUPS, SIZE = 2, 8


async def agent(client):
  """A loop of somebody's own, which is paid for answers that begin small."""
  messages, letters = [], 0
  for word in ("One?", "Two?"):
    messages.append({"role": "user", "content": word})
    said = await client.chat.completions.create(model="tiny", messages=messages)
    messages.append(said.choices[0].message)
    letters += messages[-1].content[:1].islower()
  return letters / 2


async def two_roles(client):
  """Two agents in one program: the second reads what the first wrote."""

  async def ask(role, question):
    messages = [
      {"role": "system", "content": role},
      {"role": "user", "content": question},
    ]
    said = await client.chat.completions.create(model="tiny", messages=messages)
    return said.choices[0].message.content

  plan = await ask("Plan.", "One?")
  written = await ask("Write.", f"Two: {plan}")
  return (plan[:1].islower() + written[:1].islower()) / 2


class Trained:
  """A server on an engine, a learner, and agents between the two."""

  def __init__(self, served, agent=agent):
    self._served, self._policy = served, talking.policy()
    self._agent = agent
    self._learner = Learner(
      self._policy,
      policy_objective(
        self._policy, small.loss_config(), temperature=TEMPERATURE
      ),
      optax.adam(3e-2),
      sharding.make_mesh({}),
    )
    self._batch_builder = BatchBuilder(
      self._policy,
      loss=small.loss_config(),
      advantage=small.advantage_config(),
      batch=BatchConfig(
        row_length=talking.CONTEXT, micro_batch=4, sharing=4, roles=()
      ),
      task_ids={"words": 0},
      temperature=TEMPERATURE,
      make_grammars=talking.grammars,
    )
    self.state = self._learner.init(talking.params(talking.STEPS[0]))
    versions = served.driver.engine.versions
    self._publisher = Publisher(self._policy, versions, layers_apart=False)
    self.publish()

  def publish(self):
    self._publisher.publish(self.state.params, int(self.state.version))

  async def groups(self):
    """Groups that agents play: each agent gets its episode and nothing else."""
    playing = [
      asyncio.create_task(
        run_group(
          Task("words", "train", number),
          self._served.episodes,
          GroupLimits(size=SIZE, deadline_s=60.0),
          RetryLimits(max_retries=0, backoff_s=0.0),
          Monitor(),
          group_id=f"{int(self.state.version)}-{number}",
          seed=1000 * int(self.state.version) + number,
        )
      )
      for number in range(GROUPS)
    ]
    async with aiohttp.ClientSession(f"{self._served.url}/v1/") as http:
      await asyncio.gather(*(self._play(http) for _ in range(GROUPS * SIZE)))
    return await asyncio.gather(*playing)

  async def _play(self, http):
    async with http.post("episodes", json={"wait_s": 30}) as response:
      id = (await response.json())["id"]
    async with self._served.client(default_headers={HEADER: id}) as client:
      reward = await self._agent(client)
    async with http.post(f"episodes/{id}", json={"reward": reward}) as response:
      assert response.status == 200, await response.text()

  def update(self, groups):
    batches, report = self._batch_builder.build(groups, self.state.params)
    metrics = {}
    if batches:  # none where no trajectory was better than its group
      self.state, metrics = self._learner.update(self.state, batches)
      self.publish()
    return batches, report | metrics


class AgentsTest(unittest.IsolatedAsyncioTestCase):
  agent, num_lines = staticmethod(agent), 1

  async def asyncSetUp(self):
    rules = dict(
      temperature=TEMPERATURE, max_answer_tokens=4, max_lines=self.num_lines
    )
    self.served = await self.enterAsyncContext(
      talking.Talking(rules=rules, slots=(GROUPS * SIZE, 1))
    )
    self.trained = Trained(self.served, self.agent)

  @pytest.mark.slow
  async def test_an_update_is_trained_on_what_was_recorded(self):
    for version in range(2):
      groups = await self.trained.groups()
      played = [t for group in groups for t in group.trajectories]
      self.assertEqual(len(played), GROUPS * SIZE)
      self.assertEqual({len(t.lines) for t in played}, {self.num_lines})
      stamped = {
        int(v) for t in played for turn in t.turns for v in turn.version
      }
      self.assertEqual(stamped, {version})
      before = np.array(self.trained.state.params["embedding"])
      batches, metrics = self.trained.update(groups)
      self.check_tokens(batches, played)
      self.assertLess(metrics["policy/engine_drift"], 1e-5)
      self.assertEqual(metrics["policy/on_policy_share"], 1)
      after = np.array(self.trained.state.params["embedding"])
      self.assertGreater(np.abs(after - before).max(), 1e-3)

  def check_tokens(self, batches, played):
    """Every token that was sampled is trained on, and no other."""
    sampled = np.concatenate([turn.sampled for t in played for turn in t.turns])
    trained = np.concatenate(
      [np.asarray(x.batch.token)[np.asarray(x.batch.mask)] for x in batches]
    )
    self.assertEqual(sorted(trained), sorted(sampled))
    rows = {
      tuple(token[segment == number])
      for micro_batch in batches
      for token, segment in zip(
        np.asarray(micro_batch.batch.token),
        np.asarray(micro_batch.batch.segment),
        strict=True,
      )
      for number in range(1, segment.max() + 1)
    }
    lines = {tuple(line.tokens) for t in played for line in t.lines}
    self.assertEqual(rows, lines)

  @pytest.mark.full
  async def test_success_rises(self):
    rewards = []
    for _ in range(25):
      groups = await self.trained.groups()
      found = [t.reward for group in groups for t in group.trajectories]
      rewards.append(statistics.mean(found))
      self.trained.update(groups)
    first, last = statistics.mean(rewards[:3]), statistics.mean(rewards[-5:])
    self.assertLess(first, 0.6)
    self.assertGreater(last, 0.9, rewards)


class TwoRolesTest(AgentsTest):
  agent, num_lines = staticmethod(two_roles), 2


class NoAgentsTest(unittest.IsolatedAsyncioTestCase):
  async def evaluated(self):
    """Evaluates one task by agents whom nobody has started."""
    served = await self.enterAsyncContext(
      talking.Talking(generator=talking.Scripted())
    )
    rules = served.episodes._rules
    return await evaluate(
      OfferedPlayer(served, rules, NEVER),
      [Task("sums", "test", 0)],
      concurrency=1,
      seed=0,
      retries=RetryLimits(max_retries=1, backoff_s=0.0),
      timeout_s=0.01,
    )

  async def test_the_wait_for_agents_has_an_end_that_names_them(self):
    with self.assertRaisesRegex(
      DeadlineExceeded, r"the agents, who took 0 episodes.*0 of 1 .*timeout_s"
    ):
      await self.evaluated()

  def test_a_config_that_lets_none_in_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "agents.port=-1 lets none in"):
      require_agents(read_settings(tiny.get_config()))


class EvaluatedTest(unittest.TestCase):
  @pytest.mark.slow
  @pytest.mark.timeout(900)
  def test_agents_play_the_evaluations_of_tasks_that_are_theirs(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write_model(folder / "model")
    program = agents.documented_program(folder)
    config = finetune.get_config(str(folder / "model"))
    config.update_from_flattened_dict(
      SMALL
      | {
        "workdir": str(folder / "runs"),
        "tasks.names": ("agents",),
        "agents.port": 0,
        "agents.program": f"{sys.executable} {program} {{url}} {{model}}",
        "train.steps": 2,
        "evaluation.every": 1,
        "evaluation.num_tasks": 2,
        "evaluation.num_tasks_during": 2,
        "evaluation.num_sampled_during": 2,
      }
    )
    train(config)
    run = folder / "runs" / "model"
    rows = read_metrics(run / "metrics.jsonl")
    for mode in ("greedy", "sampled"):
      during = [r for r in rows if r.stage == f"validation_{mode}"]
      self.assertEqual([r.step for r in during], [0, 1, 2])
      for row in during:
        self.assertEqual(row.values["eval/tasks/agents"], 2)
        self.assertEqual(row.values["eval/lost/agents"], 0)
      (last,) = [r for r in rows if r.stage == f"evaluation_rl_{mode}"]
      self.assertEqual(last.values["eval/tasks/agents"], 2)
    # Nobody but the agents knows what they read first.
    self.assertEqual((run / "first_prompts.json").read_text(), "{}")
    self.check_command(config, run)

  @pytest.mark.slow
  @pytest.mark.timeout(900)
  def test_agents_play_the_evaluations_of_all_stages_if_the_config_says_so(
    self,
  ):
    """Their program alone gives this reward; the environment never does."""
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    config = agents.get_config(folder)
    program = folder / "agents.py"
    program.write_text(
      program.read_text().replace("float(value == a + b)", "0.75")
    )
    config.workdir = str(folder / "runs")
    config.warm_start.num_demonstrations = 64
    config.train.steps = 1
    config.evaluation.update(agents=True, num_tasks=4, num_sampled=2)
    train(config)
    rows = read_metrics(folder / "runs" / config.name / "metrics.jsonl")
    for stage in ("untrained_sampled", "warm_start_greedy", "rl_greedy"):
      (found,) = [r.values for r in rows if r.stage == f"evaluation_{stage}"]
      self.assertEqual(found["eval/reward/arithmetic"], 0.75)

  def check_command(self, config, run):
    """`launch.evaluate --policy=agents` plays the run's last checkpoint."""

    def evaluated(*flags):
      return programs.run(
        "launch.evaluate",
        f"--config={finetune.__file__}:{config.pretrained.path}",
        "--config.tasks.names=('agents',)",
        "--policy=agents",
        f"--run={run}",
        *flags,
        deadline_s=400,
      )

    program = f"--config.agents.program={config.agents.program}"
    flags = ("--config.agents.port=0", "--config.evaluation.num_tasks=3")
    done = evaluated(*flags, program, "--samples=2", "--nogreedy")
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    scores = json.loads((run / "attempts" / "agents.json").read_text())
    self.assertEqual((scores["policy"], scores["lost"]), ("agents", 0))
    self.assertEqual(scores["tasks"]["agents"]["tasks"], 3)
    log = (run / "attempts" / "agents.attempts.jsonl").read_text()
    self.assertEqual(len(log.splitlines()), 1 + 2 * 3)
    for wrong, sentence in (
      ((), "agents.port=-1 lets none in"),
      ((*flags, "--config.agents.program=false"), "with status 1"),
    ):
      done = evaluated(*wrong)
      self.assertEqual(done.returncode, 2, done.stderr[-2000:])
      self.assertIn(sentence, done.stderr)
      self.assertNotIn("Traceback", done.stderr)


class RunTest(unittest.TestCase):
  @pytest.mark.full
  @pytest.mark.timeout(1200)
  def test_a_run_learns_to_add_from_the_documented_program(self):
    with tempfile.TemporaryDirectory() as folder:
      config = agents.get_config(pathlib.Path(folder))
      config.workdir = folder
      train(config)
      run = pathlib.Path(folder, config.name)
      lines = (run / "metrics.jsonl").read_text()
      self.assertEqual((run / "agent_program.log").read_text(), "")
    found = [
      line
      for line in map(json.loads, lines.splitlines())
      if line["stage"] == "rl"
    ]
    rewards = [line["reward/mean"] for line in found]
    self.assertEqual(len(rewards), config.train.steps)
    self.assertGreater(
      statistics.mean(rewards[-10:]), statistics.mean(rewards[:3]) + 0.15
    )
    self.assertEqual(found[-1]["agents/abandoned"], 0)
    self.assertEqual(found[-1]["agents/lines"], 1)

  @pytest.mark.slow
  @pytest.mark.timeout(600)
  def test_a_program_that_fails_ends_the_run(self):
    with tempfile.TemporaryDirectory() as folder:
      config = agents.get_config(pathlib.Path(folder))
      config.workdir = folder
      config.agents.program = f"{sys.executable} -c 'raise ValueError(7)'"
      config.warm_start.num_demonstrations = 64
      config.evaluation.num_tasks = 4
      with self.assertRaises(ExceptionGroup) as caught:
        train(config)
      self.assertRegex(repr(caught.exception), "ConfigError.*ValueError: 7")


TOOLS = [
  {
    "type": "function",
    "function": {
      "name": "paint",
      "strict": True,
      "parameters": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue", "black"]}},
        "required": ["colour"],
      },
    },
  }
]


async def painter(client):
  """Is paid for what it paints red; every answer is a call that can be read."""
  said = await client.chat.completions.create(
    model="tiny",
    messages=[{"role": "user", "content": "Paint it."}],
    tools=TOOLS,
    tool_choice="required",
    parallel_tool_calls=False,
  )
  (call,) = said.choices[0].message.tool_calls
  return float(json.loads(call.function.arguments)["colour"] == "red")


class ForcedAgentsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    rules = dict(temperature=TEMPERATURE, max_answer_tokens=300)
    self.served = await self.enterAsyncContext(
      talking.Talking(rules=rules, slots=(16, 1))
    )
    self.trained = Trained(self.served, painter)

  async def play(self):
    groups = await self.trained.groups()
    rewards = [t.reward for group in groups for t in group.trajectories]
    _, metrics = self.trained.update(groups)
    return statistics.mean(rewards), metrics

  @pytest.mark.slow
  async def test_learner_and_engine_mean_one_distribution(self):
    for _ in range(2):
      _, metrics = await self.play()
      self.assertLess(metrics["policy/engine_drift"], 1e-5)
      self.assertEqual(metrics["policy/on_policy_share"], 1)

  @pytest.mark.full
  async def test_success_rises(self):
    rewards = [(await self.play())[0] for _ in range(15)]
    self.assertLess(rewards[0], 0.6)
    self.assertGreater(statistics.mean(rewards[-3:]), 0.9, rewards)
