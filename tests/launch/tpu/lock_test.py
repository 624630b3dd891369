"""The lock file of hosts and images, and the files of the image."""

import ast
import pathlib
import re

from absl.testing import absltest

ROOT = pathlib.Path(__file__).parents[3]
LOCK = ROOT / "launch" / "tpu" / "requirements.lock"
EXTRAS = ("tpu", "jetstream", "grpc")


def required() -> set[str]:
  """Names of the packages that setup.py requires on a TPU."""
  values = {}
  for node in ast.parse((ROOT / "setup.py").read_text()).body:
    if isinstance(node, ast.Assign):
      values[node.targets[0].id] = ast.literal_eval(node.value)
  wanted = list(values["REQUIRED"])
  for extra in EXTRAS:
    wanted += values["EXTRAS"][extra]
  return {_name(re.split(r"[\[<>=]", word)[0]) for word in wanted}


def _name(text: str) -> str:
  return text.strip().lower().replace("_", "-")


class TpuLockTest(absltest.TestCase):
  def test_holds_all_that_is_required_each_at_one_version(self):
    lines = [
      line
      for line in LOCK.read_text().splitlines()
      if line and not line.startswith("#")
    ]
    for line in lines:
      self.assertRegex(line, r"^[A-Za-z0-9._-]+==[0-9][^ ]*( ; .*)?$")
    locked = {_name(line.partition("==")[0]) for line in lines}
    self.assertEmpty(required() - locked)
    self.assertContainsSubset(
      {"google-jetstream", "jax", "jaxlib", "libtpu"}, locked
    )

  def test_the_image_copies_what_there_is(self):
    text = (ROOT / "launch" / "gke" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) \S+$", text, re.M)
    self.assertContainsSubset(
      {"agentrl_jax", "environments", "configs", "launch"}, copied
    )
    for path in copied:
      self.assertTrue((ROOT / path).exists(), path)
