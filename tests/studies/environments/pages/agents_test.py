"""Tests of the agents of pages, against a server with a scripted policy."""

import asyncio

import pytest
from absl.testing import parameterized

from agentrl_jax.data.records import EpisodeSpec, Status, Task
from agentrl_jax.errors import ConfigError, GeneratorFault
from studies.environments.pages import agents
from studies.environments.pages.agents import Agents, read_steps
from studies.environments.pages.environment import ALONE, PLANNER
from tests.rollout import talking
from tests.rollout.openai.agents_playing import WAIT_S, Playing

CONTEXT = 8192
TASK = Task("long", "train", 7)
PAGES = read_steps("short=2,long=3", num_notes=24)
TRAIL = PAGES["long"].find(TASK)


def opens(page, left=1):
  arguments = f'{{"page": {page}, "left": {left}}}'
  return _call("open", arguments)


def answers(page):
  return _call("answer", f'{{"page": {page}}}')


def _call(name, arguments):
  return (
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n'
    "</tool_call><|end|>"
  )


def way():
  """The pages of the trail, from the first to the end."""
  found = [TRAIL.start]
  for _ in range(TRAIL.num_steps):
    found.append(TRAIL.next(found[-1]))
  return found


class _Broken(talking.Scripted):
  async def generate(self, prompt, spec):
    raise GeneratorFault("on purpose")


class AgentsTest(Playing):
  async def asyncSetUp(self):
    pass  # each test serves with its own limits

  async def play(self, form, says, *, max_tokens=CONTEXT, max_turns=24):
    """Plays an episode with the policy's answers; returns its record."""
    policy = talking.Scripted()
    policy.says = [*says]
    await self.serve(
      generator=policy,
      limits=dict(context=CONTEXT),
      rules=dict(
        max_tokens=max_tokens,
        max_turns=max_turns,
        max_answer_tokens=400,
        max_lines=16,
      ),
    )
    self.left = policy.says
    spec = EpisodeSpec(task=TASK, group_id="g", attempt=0, seed=5)
    playing = asyncio.create_task(self.served.episodes.play(spec))
    self.addCleanup(playing.cancel)
    _, episode = await self.post("episodes", wait_s=WAIT_S)
    url = f"{self.served.url}/v1"
    playable = Agents(url, talking.NAME, form, PAGES, api_key="-")
    await asyncio.to_thread(playable.play, episode)
    return await playing

  async def lengths(self):
    """Returns the tokens before the last answer of each kind of line."""
    (alone,) = (await self.play(ALONE, self.alone())).lines
    delegated = await self.play(PLANNER, self.delegated())
    planner, worker, *_ = delegated.lines
    return [
      line.num_tokens - len(line.turns[-1].sampled)
      for line in (planner, worker, alone)
    ]

  def alone(self):
    first, second, third, end = way()
    return [opens(first, 3), opens(second, 2), opens(third, 1), answers(end)]

  def delegated(self):
    says = []
    for left, (page, following) in enumerate(
      zip(way(), way()[1:], strict=False)
    ):
      says += [opens(page, 3 - left), opens(page), answers(following)]
    return [*says, answers(TRAIL.end)]

  async def test_workers_read_pages_and_the_planner_reads_numbers(self):
    played = await self.play(PLANNER, self.delegated())
    self.assertEqual((played.reward, played.status), (1.0, Status.COMPLETED))
    roles = [line.role for line in played.lines]
    self.assertEqual(roles, ["planner", "worker", "worker", "worker"])
    self.assertEqual(
      [line.numbers for line in played.lines],
      [(0, 3, 6, 9), (1, 2), (4, 5), (7, 8)],
    )
    said = [message["content"] for message in played.transcript[:7]]
    self.assertEqual(
      said[2:7:2], [str(page) for page in way()[1:]], "the planner's replies"
    )
    asked = [m["content"] for m in played.transcript if m["role"] == "user"]
    self.assertEqual(
      asked,
      [TRAIL.question, *(f"Follow 1 from {page}." for page in way()[:-1])],
    )
    self.assertEqual(played.metrics["workers"], 3.0)
    self.assertEqual(played.metrics["cut_workers"], 0.0)

  async def test_an_attempt_that_the_server_failed_is_given_back_at_once(self):
    await self.serve(generator=_Broken(), limits=dict(context=CONTEXT))
    spec = EpisodeSpec(task=TASK, group_id="g", attempt=0, seed=5)
    playing = asyncio.create_task(self.served.episodes.play(spec))
    self.addCleanup(playing.cancel)
    playable = Agents(
      f"{self.served.url}/v1", talking.NAME, ALONE, PAGES, api_key="-"
    )
    running = asyncio.create_task(asyncio.to_thread(playable.run))
    played = await asyncio.wait_for(playing, WAIT_S)
    self.assertIs(played.status, Status.CANCELLED)
    self.assertEqual(played.turns, ())
    await self.served.episodes.close()
    await asyncio.wait_for(running, WAIT_S)

  async def test_one_agent_reads_all_pages_in_one_line(self):
    played = await self.play(ALONE, self.alone())
    self.assertEqual((played.reward, played.status), (1.0, Status.COMPLETED))
    self.assertEqual(len(played.lines), 1)
    self.assertEqual(played.metrics["workers"], 0.0)

  @pytest.mark.slow
  async def test_where_one_context_overflows_workers_do_not(self):
    planner, worker, alone = await self.lengths()
    self.assertGreater(alone, max(planner, worker))
    limit = alone - 5  # no room for the third page
    cut = await self.play(ALONE, self.alone(), max_tokens=limit)
    self.assertIs(cut.status, Status.AGENT_CONTEXT_LIMIT)
    self.assertEqual((cut.reward, cut.metrics["context_full"]), (0.0, 1.0))
    self.assertEqual(len(self.left), 1)  # the answer was not asked for
    whole = await self.play(PLANNER, self.delegated(), max_tokens=limit)
    self.assertIs(whole.status, Status.COMPLETED)
    self.assertEqual((whole.reward, whole.metrics["context_full"]), (1.0, 0.0))

  async def test_a_worker_that_is_cut_is_reported_to_the_planner(self):
    _, worker, _ = await self.lengths()
    says = [opens(TRAIL.start, 3), opens(TRAIL.start), answers(TRAIL.end)]
    played = await self.play(PLANNER, says, max_tokens=worker - 5)
    self.assertIs(played.status, Status.COMPLETED)
    self.assertEqual(played.metrics["cut_workers"], 1.0)
    self.assertEqual(played.transcript[2]["content"], agents.NO_WORKER)
    self.assertEqual(played.reward, 1.0)  # a guess, which the reward allows

  @pytest.mark.slow
  async def test_where_all_contexts_overflow_the_reward_is_the_same(self):
    first, *_ = way()
    planner = [word for _ in range(7) for word in (opens(first), opens(first))]
    alone = [opens(first) for _ in range(7)]
    _, worker, _ = await self.lengths()
    played = {
      form: await self.play(form, says, max_tokens=worker - 5)
      for form, says in ((PLANNER, planner), (ALONE, alone))
    }
    for form, found in played.items():
      with self.subTest(form=form):
        self.assertIs(found.status, Status.AGENT_CONTEXT_LIMIT)
        self.assertEqual((found.reward, found.metrics["context_full"]), (0, 1))

  async def test_a_planner_without_workers_may_only_guess(self):
    wrong = await self.play(PLANNER, [answers(TRAIL.next(TRAIL.end))])
    self.assertEqual((wrong.reward, wrong.status), (0.0, Status.COMPLETED))
    self.assertEqual(wrong.metrics["workers"], 0.0)
    right = await self.play(PLANNER, [answers(TRAIL.end)])
    self.assertEqual(right.reward, 1.0)

  async def test_a_worker_without_an_answer(self):
    first = TRAIL.start
    says = [opens(first), opens(first), "Hm.<|end|>", opens(first)]
    played = await self.play(PLANNER, [*says, answers(TRAIL.end)])
    self.assertEqual(played.metrics["silent_workers"], 1.0)
    self.assertEqual(played.metrics["cut_workers"], 0.0)
    self.assertEqual(played.transcript[2]["content"], agents.NO_WORKER)

  async def test_turns_run_out(self):
    played = await self.play(PLANNER, self.delegated(), max_turns=5)
    self.assertIs(played.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual((played.reward, len(played.turns)), (0.0, 5))

  async def test_calls_run_out(self):
    most = TRAIL.num_steps + 1 + agents.SPARE_CALLS
    played = await self.play(ALONE, ["Hm.<|end|>"] * most)
    self.assertIs(played.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(len(played.turns), most)

  @pytest.mark.slow
  async def test_a_mistake_is_answered(self):
    says = [opens(7), "<tool_call>{</tool_call><|end|>", answers(TRAIL.end)]
    played = await self.play(ALONE, says)
    self.assertEqual(played.reward, 1.0)
    self.assertIn("must be at least 10", played.transcript[2]["content"])


class ArgumentsTest(parameterized.TestCase):
  @parameterized.parameters("", "short", "short=", "short=two", "=2", "a=1,")
  def test_tasks_are_name_and_number(self, text):
    with self.assertRaisesRegex(ConfigError, "short=2,long=3"):
      read_steps(text, num_notes=3)

  def test_a_task_that_is_not_named(self):
    playable = Agents("http://127.0.0.1:1/v1", "m", ALONE, PAGES, api_key="-")
    episode = {
      "id": "e",
      "seed": 0,
      "task": {"name": "medium", "split": "train", "index": 0},
    }
    with self.assertRaisesRegex(ConfigError, "'medium'.*short, long"):
      playable.play(episode)
