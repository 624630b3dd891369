"""Tests of `controller.groups.group`: faults, late episodes and bugs."""

import asyncio
import dataclasses
import unittest

from agentrl_jax.controller.groups.group import run_group
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Status
from agentrl_jax.errors import EnvironmentFault, GeneratorFault, PromptTooLong
from tests.clocks import Clock, turns_of_the_loop, until
from tests.controller.stage import (
  GROUP,
  RETRIES,
  Brittle,
  ScriptedEngine,
  a_player,
  a_task,
  a_trajectory,
)


class Scripted:
  """Player whose outcomes are given by (attempt, try)."""

  def __init__(self, act):
    self._act = act
    self.seeds = {}

  async def play(self, spec):
    tries = self.seeds.setdefault(spec.attempt, [])
    tries.append(spec.seed)
    await asyncio.sleep(0)
    outcome = self._act(spec.attempt, len(tries) - 1)
    if isinstance(outcome, BaseException):
      raise outcome
    if isinstance(outcome, asyncio.Event):
      await outcome.wait()
    status = outcome if isinstance(outcome, Status) else Status.COMPLETED
    played = a_trajectory(attempt=spec.attempt, status=status)
    return dataclasses.replace(played, fault="why")


async def run(player, limits=GROUP, monitor=None):
  return await run_group(
    a_task(),
    player,
    limits,
    RETRIES,
    monitor or Monitor(),
    group_id="g",
    seed=3,
  )


class GroupTest(unittest.IsolatedAsyncioTestCase):
  async def test_all_attempts_in_order_with_seeds_of_their_own(self):
    player = Scripted(lambda number, tries: None)
    group = await run(player)
    self.assertEqual([t.attempt for t in group.trajectories], [0, 1, 2, 3])
    self.assertEqual(group.num_masked, 0)
    self.assertEqual(len({s[0] for s in player.seeds.values()}), 4)

  async def test_members_stand_in_order_however_they_end(self):
    gates = [asyncio.Event() for _ in range(4)]
    running = asyncio.create_task(
      run(Scripted(lambda number, tries: gates[number]))
    )
    for gate in reversed(gates):
      await turns_of_the_loop()
      gate.set()
    group = await running
    self.assertEqual([t.attempt for t in group.trajectories], [0, 1, 2, 3])

  async def test_fault_is_retried_with_the_same_seed(self):
    for fault in (
      EnvironmentFault("broke"),
      GeneratorFault("broke"),
      Status.TASK_ERROR,
      Status.CANCELLED,
      Status.UNKNOWN,
    ):
      with self.subTest(fault=fault):
        monitor = Monitor()
        player = Scripted(
          lambda number, tries, fault=fault: (
            fault if number == 1 and tries == 0 else None
          )
        )
        group = await run(player, monitor=monitor)
        self.assertEqual(len(group.trajectories), 4)
        self.assertEqual(len(player.seeds[1]), 2)
        self.assertEqual(len(set(player.seeds[1])), 1)
        counts = monitor.tasks["arithmetic"]
        self.assertEqual((counts.retried, counts.masked), (1, 0))
        self.assertEqual((counts.started, counts.finished), (5, 4))
        why = "why" if isinstance(fault, Status) else "broke"
        self.assertEqual(counts.latest_fault, why)

  async def test_an_episode_out_of_retries_is_masked_and_siblings_stay(self):
    monitor = Monitor()
    player = Scripted(
      lambda number, tries: EnvironmentFault("broke") if number == 1 else None
    )
    group = await run(player, monitor=monitor)
    self.assertEqual([t.attempt for t in group.trajectories], [0, 2, 3])
    self.assertEqual(group.num_masked, 1)
    self.assertEqual(len(player.seeds[1]), 3)
    counts = monitor.tasks["arithmetic"]
    self.assertEqual(counts.faults, {"EnvironmentFault": 3})
    self.assertEqual(counts.masked, 1)

  async def test_an_exception_is_logged_whole_once(self):
    def broken(number, tries):
      fault = EnvironmentFault(f"broke {tries}")
      try:
        [][0]
      except IndexError as cause:
        fault.__cause__ = cause
      return fault

    monitor = Monitor()
    with self.assertLogs("agentrl_jax.controller.groups.group") as logs:
      self.assertIsNone(await run(Scripted(broken), monitor=monitor))
    self.assertEqual(len(logs.records), 12)
    whole = [bool(record.exc_info) for record in logs.records]
    self.assertEqual(whole, [True] + 11 * [False])
    self.assertEqual(
      monitor.latest_faults(), "arithmetic: 12 faults, the latest: broke 2"
    )

  async def test_every_ending_of_the_policys_doing_is_kept_at_once(self):
    doing = [s for s in Status if s.is_policys_doing]
    self.assertEqual(len(doing), 5)
    player = Scripted(lambda number, tries: doing[number])
    group = await run(player, dataclasses.replace(GROUP, size=5))
    self.assertEqual([t.status for t in group.trajectories], doing)
    self.assertEqual({len(s) for s in player.seeds.values()}, {1})

  async def test_lone_survivor_is_dropped_and_counted(self):
    monitor = Monitor()
    player = Scripted(
      lambda number, tries: EnvironmentFault("broke") if number else None
    )
    self.assertIsNone(await run(player, monitor=monitor))
    counts = monitor.tasks["arithmetic"]
    self.assertEqual(counts.dropped, {"faults": 1})

  async def test_group_of_one_is_whole_with_one(self):
    player = Scripted(lambda number, tries: None)
    group = await run(player, dataclasses.replace(GROUP, size=1))
    self.assertEqual(len(group.trajectories), 1)

  async def test_task_too_long_is_not_tried_again(self):
    monitor = Monitor()
    player = Scripted(lambda number, tries: PromptTooLong("long"))
    self.assertIsNone(await run(player, monitor=monitor))
    self.assertEqual(monitor.tasks["arithmetic"].started, 4)

  async def test_deadline_hands_over_two_and_cancels_the_rest(self):
    await self._late(num_in_time=2, members=2, dropped={})

  async def test_deadline_with_one_drops(self):
    await self._late(num_in_time=1, members=None, dropped={"too_late": 1})

  async def _late(self, *, num_in_time, members, dropped):
    environment, monitor = Brittle(), Monitor()
    never = asyncio.Event()

    class Slow(ScriptedEngine):
      async def generate(self, prompt, spec):
        answer = await super().generate(prompt, spec)
        if len(self.asked) > 2 * num_in_time:
          await never.wait()
        return answer

    class OneByOne:
      """Lets attempts run one after another, so that the first get done."""

      def __init__(self):
        self._player = a_player(environment, Slow())
        self._turn = asyncio.Lock()

      async def play(self, spec):
        async with self._turn:
          return await self._player.play(spec)

    clock = Clock()
    async with asyncio.TaskGroup() as tasks:
      running = tasks.create_task(run(OneByOne(), GROUP, monitor))
      counts = monitor.tasks["arithmetic"]
      await until(lambda: counts.finished == num_in_time)
      await turns_of_the_loop()
      self.assertFalse(running.done())
      await clock.forward(GROUP.deadline_s)
    group = running.result()
    self.assertEqual(group and len(group.trajectories), members)
    found = environment.num_open, counts.late, counts.dropped
    self.assertEqual(found, (0, 4 - num_in_time, dropped))
    if group:
      self.assertEqual(group.num_masked, 2)

  async def test_bug_stops_all_and_is_raised(self):
    never = asyncio.Event()
    player = Scripted(
      lambda number, tries: ZeroDivisionError() if number == 2 else never
    )
    with self.assertRaises(ExceptionGroup) as caught:
      await run(player)
    self.assertIsInstance(caught.exception.exceptions[0], ZeroDivisionError)
    self.assertEqual(len(asyncio.all_tasks()), 1)

  async def test_timeout_of_a_member_is_not_the_groups(self):
    player = Scripted(
      lambda number, tries: TimeoutError("a bug") if number == 0 else None
    )
    with self.assertRaises(ExceptionGroup):
      await run(player)
