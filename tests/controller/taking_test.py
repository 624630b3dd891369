"""Tests of `controller.taking`: no group passes the age, none waits in vain."""

import itertools
import random
import unittest

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.admission import Admission, AdmissionLimits
from agentrl_jax.controller.taking import select_groups


def choose(finished, born, num_groups=2, version=2, max_age=2):
  chosen = select_groups(
    list(finished),
    dict(born),
    num_groups=num_groups,
    version=version,
    max_age=max_age,
  )
  return chosen if chosen is None else "".join(chosen)


class ChooseTest(unittest.TestCase):
  def test_first_come_first_taken_while_nothing_is_due(self):
    born = {"a": 2, "b": 2, "c": 2, "d": 2}
    self.assertEqual(choose("dcb", born), "dc")

  def test_too_few_is_waited_for(self):
    self.assertIsNone(choose("a", {"a": 2, "b": 2}))

  def test_group_that_is_due_is_waited_for(self):
    born = {"slow": 0, "b": 2, "c": 2}
    self.assertIsNone(choose("bc", born))
    self.assertEqual(
      select_groups(
        ["b", "c", "slow"], born, num_groups=2, version=2, max_age=2
      ),
      ["b", "slow"],
    )

  def test_group_that_is_not_yet_due_is_overtaken(self):
    self.assertEqual(choose("bc", {"a": 1, "b": 2, "c": 2}), "bc")

  def test_looks_further_ahead_than_one_step(self):
    """Three due at the next version, two to a step: one must go now."""
    born = {"a": 1, "b": 1, "c": 1, "d": 2, "e": 2}
    self.assertIsNone(choose("de", born))
    self.assertEqual(choose("dea", born), "da")

  def test_the_next_taking_is_several_versions_on(self):
    """At version 4 and every second one: age 3 is 5 by the next."""
    born = {"slow": 2, "b": 4, "c": 4}
    in_time = {"num_groups": 2, "version": 4, "max_age": 3}
    self.assertEqual(select_groups("bc", born, **in_time), ["b", "c"])
    self.assertIsNone(select_groups("bc", born, **in_time, versions_per_step=2))

  def test_more_due_than_fit_are_taken_as_far_as_they_go(self):
    born = dict.fromkeys("abc", 0)
    self.assertEqual(choose("abc", born), "ab")

  def test_with_every_choice_left_open_some_wait_is_never_for_ever(self):
    """If all has come and there is enough, something is taken."""
    for ages in itertools.product(range(3), repeat=4):
      born = dict(zip("abcd", ages, strict=True))
      self.assertIsNotNone(choose("dcba", born))

  @settings(deadline=None, max_examples=80)
  @given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(0, 2**32),
  )
  def test_no_group_passes_the_age_whatever_the_timing(
    self, max_staleness, leeway, per_step, concurrent, stride, seed
  ):
    """Groups end at random, the slow ones last; some are lost."""
    max_age = max_staleness + leeway
    admission = Admission(
      AdmissionLimits(
        max_staleness=max_staleness,
        groups_per_step=per_step,
        max_concurrent_groups=concurrent,
        versions_per_step=stride,
      )
    )
    dice = random.Random(seed)
    born, finished, oldest = {}, [], 0
    for n in range(300):
      if admission.refusal() is None:
        admission.start()
        born[f"{n}"] = admission.version
      running = [g for g in born if g not in finished]
      if running and dice.random() < 0.7:
        group = running[-1] if dice.random() < 0.8 else running[0]
        admission.end() if (kept := dice.random() < 0.9) else admission.lose()
        if kept:
          finished.append(group)
        else:
          del born[group]
      chosen = select_groups(
        finished,
        born,
        num_groups=per_step,
        version=admission.version,
        max_age=max_age,
        versions_per_step=stride,
      )
      if chosen is not None:
        oldest = max(oldest, *(admission.version - born[g] for g in chosen))
        finished = [g for g in finished if g not in chosen]
        born = {g: v for g, v in born.items() if g not in chosen}
        admission.advance(admission.version + stride)
    self.assertGreater(admission.version, 0)
    self.assertLessEqual(oldest, max_age)
    overdue = [g for g, v in born.items() if admission.version - v > max_age]
    self.assertEqual(overdue, [])


if __name__ == "__main__":
  unittest.main()
