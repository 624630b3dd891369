"""Compilations are seen while they run, and cost no estimate."""

import io
import pathlib
import threading
import unittest
from unittest import mock

import jax
from rich.console import Console

import agentrl_jax
from launch.reports import progress
from launch.reports.progress import CompilationWatch, StageProgress
from tests.clocks import StoppedClock, wait_until


def compile_slowly(clock: StoppedClock, seconds: float, meanwhile=lambda: None):
  """Compiles a program, whose tracing takes so long on the clock."""

  def sluggish(x):
    clock.now_s += seconds
    meanwhile()
    return x + 1

  return jax.jit(sluggish)(jax.numpy.zeros(3))


class CompilationWatchTest(unittest.TestCase):
  def setUp(self):
    self.clock = StoppedClock()
    jax.numpy.zeros(3)  # compiled before

  def test_says_what_and_for_how_long(self):
    seen = []
    with CompilationWatch(self.clock) as watch:
      self.assertIsNone(watch.current())
      compile_slowly(
        self.clock,
        5.0,
        lambda: seen.append((watch.current(1.0), watch.seconds)),
      )
      self.assertEqual(seen, [(("sluggish", 100.0), 5.0)])
      self.assertIsNone(watch.current())
      self.assertEqual(watch.seconds, 5.0)
    compile_slowly(self.clock, 5.0)
    self.assertEqual(watch.seconds, 5.0)

  def test_short_ones_are_not_told(self):
    seen = []
    with CompilationWatch(self.clock) as watch:
      compile_slowly(self.clock, 0.5, lambda: seen.append(watch.current(1.0)))
    self.assertEqual(seen, [None])

  def test_two_threads_at_once_count_once(self):
    with CompilationWatch(self.clock) as watch:

      def other():
        thread = threading.Thread(target=compile_slowly, args=(self.clock, 2.0))
        thread.start()
        thread.join()

      compile_slowly(self.clock, 3.0, other)
      self.assertEqual(watch.seconds, 5.0)

  def test_a_failed_compilation_is_over(self):
    def broken():
      raise ZeroDivisionError

    with CompilationWatch(self.clock) as watch:
      with self.assertRaises(ZeroDivisionError):
        compile_slowly(self.clock, 1.0, broken)
      self.assertIsNone(watch.current())


class EstimateTest(unittest.TestCase):
  def test_purposes_are_of_programs_that_exist(self):
    root = pathlib.Path(agentrl_jax.__file__).parent
    source = "".join(path.read_text() for path in root.rglob("*.py"))
    for name in progress.PURPOSES:
      self.assertRegex(source, rf"def _?{name}\(", name)

  def test_a_stage_that_compiles_says_so_and_estimates_without(self):
    clock, output = StoppedClock(), io.StringIO()
    purpose = {"sluggish": "which is slow"}
    with (
      mock.patch.dict(progress.PURPOSES, purpose),
      StageProgress(
        "rl", 40, console=Console(file=output), plain_every_s=0, clock=clock
      ) as show,
    ):
      said = threading.Event()

      def wait_for_the_word():
        wait_until(lambda: "compiling" in output.getvalue())
        said.set()

      compile_slowly(clock, 110.0, wait_for_the_word)
      show.update(1, {})
      clock.now_s += 0.5
      show.update(2, {})
    lines = output.getvalue().splitlines()
    self.assertTrue(said.is_set(), lines)
    text = output.getvalue()
    self.assertIn("RL: compiling sluggish, which is slow; the time left", text)
    self.assertTrue(lines[-1].startswith("RL 2/40 | 2.0 steps/s"), lines[-1])
    self.assertIn("19.0\xa0s left", lines[-1])

  def test_a_terminal_shows_it_while_it_lasts(self):
    clock = StoppedClock()
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    pictures = []

    def draw():
      with console.capture() as captured:
        console.print(show.render())
      pictures.append(captured.get())

    show = StageProgress("rl", 40, console=console, clock=clock)
    with show:
      compile_slowly(clock, 12.0, draw)
      draw()
    self.assertIn("compiling sluggish, for 12.0", pictures[0])
    self.assertNotIn("compiling", pictures[1])
