"""Tests of `report.facts`: found out, not assumed."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from launch.reports import facts


def git(repository: pathlib.Path, *arguments: str) -> str:
  who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
  return subprocess.run(
    ["git", "-C", str(repository), *who, *arguments],
    check=True,
    capture_output=True,
    text=True,
    timeout=30,
  ).stdout.strip()


class FactsTest(unittest.TestCase):
  def setUp(self):
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def test_commit_says_when_files_differ_from_it(self):
    git(self.folder, "init", "-q")
    (self.folder / "a").write_text("1")
    git(self.folder, "add", "a")
    git(self.folder, "commit", "-qm", "first")
    head = git(self.folder, "rev-parse", "HEAD")
    self.assertEqual(facts.commit(self.folder), head)
    (self.folder / "a").write_text("2")
    self.assertEqual(
      facts.commit(self.folder), f"{head} with uncommitted changes"
    )

  def test_code_without_history_has_no_commit(self):
    self.assertEqual(facts.commit(self.folder), "unknown")

  def test_versions_are_those_installed(self):
    found = facts.versions()
    self.assertEqual(found["python"], sys.version.split()[0])
    self.assertEqual(set(found), {"python", *facts.PACKAGES})

  def test_facts_can_be_filed_and_name_no_host(self):
    found = facts.run_facts(seed=3, devices=["cpu:0"])
    text = json.dumps(found)
    self.assertEqual(json.loads(text), found)
    self.assertEqual(found["seed"], 3)
    self.assertEqual(found["machine"]["devices"], ["cpu:0"])
    self.assertGreaterEqual(found["machine"]["cores"], 1)
    self.assertGreater(found["machine"]["memory_gib"], 0)
    self.assertNotIn(str(pathlib.Path.home()), text)
