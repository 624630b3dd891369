"""Grammars that take too long to compile are stopped, and only they."""

import json
import os
import signal
import unittest

import llguidance

from agentrl_jax.data.grammar.process import GrammarProcess, GrammarTooLarge
from agentrl_jax.errors import DeadlineExceeded
from tests.rollout import talking


def json_of(schema):
  return f"start: %json {json.dumps(schema)}"


ENDLESS = json_of({"type": "integer", "multipleOf": 720720})


class GrammarProcessTest(unittest.TestCase):
  def setUp(self):
    self.process = talking.grammars().process()
    self.addCleanup(self.process.close)

  def test_says_what_llguidance_says(self):
    for grammar in ('start: "a"', "start: b", json_of({"type": "no"}), "\x00"):
      for compiled in (False, True):
        found = self.process.check(grammar, cpu_s=5.0, compiled=compiled)
        wanted = llguidance.LLMatcher.validate_grammar(grammar)
        self.assertEqual(bool(found), bool(wanted), grammar)

  def test_an_endless_one_ends_and_the_next_is_checked(self):
    for _ in range(2):
      with self.assertRaisesRegex(GrammarTooLarge, "http.compile_timeout_s"):
        self.process.check(ENDLESS, cpu_s=0.1)
      self.assertEqual(self.process.check('start: "a"', cpu_s=5.0), "")

  def test_without_a_tokenizer_it_reads(self):
    process = GrammarProcess()
    self.addCleanup(process.close)
    self.assertEqual(process.check('start: "a"', cpu_s=5.0, compiled=False), "")

  def test_a_process_that_was_killed_starts_again(self):
    self.assertEqual(self.process.check('start: "a"', cpu_s=5.0), "")
    (running,) = self.process._running
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    self.assertEqual(self.process.check('start: "a"', cpu_s=5.0), "")

  def test_a_process_that_dies_at_work_is_told(self):
    self.process._head["tokenizer"] = "no tokenizer"
    with self.assertRaisesRegex(DeadlineExceeded, "compiles grammars"):
      self.process.check('start: "a"', cpu_s=5.0)
