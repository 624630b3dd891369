"""Tests of the command that builds images."""

import pathlib
import unittest

import pytest

from environments.images import ROOT, environments_with_images
from tests import programs
from tests.service.docker.engine_for_tests import base_or_skip, connect_or_skip

REGISTRY = "agentrl_jax-test"
DEADLINE_S = 300


def launch_images(*words):
  return programs.run("launch.build_images", *words, deadline_s=DEADLINE_S)


@pytest.mark.docker
class ImagesTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.base = base_or_skip(cls.docker)

  @pytest.mark.slow
  def test_builds_those_named_and_lists_all(self):
    tag = f"{REGISTRY}/arithmetic:latest"
    base = f"{REGISTRY}/worker:latest"
    for image in (tag, base, f"{base}-packages"):
      self.addCleanup(self.docker.images.remove, image, force=True)
    done = launch_images(
      "arithmetic", f"--base={self.base}", f"--registry={REGISTRY}"
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(done.stdout, rf"{tag}\s+\d+ MB, \d+ s")
    self.assertTrue(self.docker.images.list(tag))
    listed = launch_images("--list", f"--registry={REGISTRY}").stdout
    for name in environments_with_images():
      self.assertIn(name, listed)

  @pytest.mark.slow
  def test_a_failed_build_fails_the_command(self):
    done = launch_images(
      "arithmetic", "--base=scratch", f"--registry={REGISTRY}"
    )
    self.assertNotEqual(done.returncode, 0)
    self.assertIn("not built: arithmetic", done.stderr)


class EnvironmentsWithImagesTest(unittest.TestCase):
  def test_every_environment_has_one(self):
    folders = pathlib.Path(ROOT / "environments").glob("*/README.md")
    names = {p.parent.name for p in folders} - {"harbor"}  # builds its tasks'
    self.assertEqual(environments_with_images(), sorted(names))
