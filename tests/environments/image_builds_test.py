"""Tests that workers' images build, on a common base, from code alone."""

import pathlib
import tempfile
import unittest

import pytest

from agentrl_jax.errors import ConfigError
from environments.images import ROOT, build_image
from tests.service.docker.engine_for_tests import DockerTestCase, build_or_skip


@pytest.mark.docker
class BuildImageTest(DockerTestCase):
  @pytest.mark.slow
  def test_the_worker_starts_in_it(self):
    tag = build_or_skip(self.docker, "arithmetic")
    words = self.docker.containers.run(tag, ["--help"], remove=True)
    self.assertIn(b"Serves an environment", words)

  @pytest.mark.slow
  def test_it_begins_with_the_layers_of_the_worker_base(self):
    tag = build_or_skip(self.docker, "arithmetic")
    layers, base_layers = (
      self.docker.images.get(name).attrs["RootFS"]["Layers"]
      for name in (tag, "agentrl_jax/worker:latest")
    )
    self.assertEqual(layers[: len(base_layers)], base_layers)
    self.assertGreater(len(layers), len(base_layers))

  def test_a_failing_build_shows_the_end_of_its_log(self):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      dockerfile = root / "environments" / "broken" / "Dockerfile"
      dockerfile.parent.mkdir(parents=True)
      dockerfile.write_text("FROM scratch\nCOPY nothing /\n")
      with self.assertRaisesRegex(ConfigError, "broken/Dockerfile does not b"):
        build_image(self.docker, "broken", root=root)

  def test_an_unknown_environment_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "with one: .*arithmetic"):
      build_image(self.docker, "nowhere")


class DockerignoreTest(unittest.TestCase):
  def test_the_context_is_code_alone(self):
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    self.assertEqual(
      [rule for rule in rules if not rule.startswith("#")],
      ["*", "!agentrl_jax", "!environments", "**/__pycache__"],
    )
