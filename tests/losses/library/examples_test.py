"""Runs the examples of the documentation."""

import pathlib
import re
import subprocess
import sys

import pytest
from absl.testing import absltest, parameterized

from agentrl_jax import losses

ROOT = pathlib.Path(__file__).parents[3]


class ExamplesTest(parameterized.TestCase):
  @parameterized.parameters(("bandit", 0.95), ("higher_or_lower", 0.9))
  @pytest.mark.slow
  def test_learns(self, name, least):
    done = subprocess.run(
      [sys.executable, f"docs/examples/{name}.py"],
      cwd=ROOT,
      capture_output=True,
      text=True,
      timeout=200,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    shares = [float(x) for x in re.findall(r"step \d+: (\S+)", done.stdout)]
    self.assertLess(shares[0], 0.8)
    self.assertGreater(shares[-1], least)

  @parameterized.parameters("bandit", "higher_or_lower")
  def test_uses_the_losses_alone(self, name):
    text = (ROOT / f"docs/examples/{name}.py").read_text()
    imported = re.findall(r"^(?:import|from) (\S+)", text, re.MULTILINE)
    self.assertEqual(set(imported), {"jax", "jax.numpy", "agentrl_jax"})


class PageTest(absltest.TestCase):
  @pytest.mark.slow
  def test_every_program_of_the_page_runs(self):
    page = (ROOT / "docs/losses.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    self.assertGreaterEqual(len(programs), 2)
    for program in programs:
      with self.subTest(program.splitlines()[0]):
        exec(compile(program, "docs/losses.md", "exec"), {})  # noqa: S102

  def test_every_public_name_is_in_a_table(self):
    page = (ROOT / "docs/losses.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    named = set(re.findall(r"`([A-Za-z]\w*)`", " ".join(rows)))
    self.assertContainsSubset(set(losses.__all__), named)
