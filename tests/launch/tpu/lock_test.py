"""The lock file of hosts and images, and the files of the image."""

import pathlib
import re
import runpy
from unittest import mock

from absl.testing import absltest

ROOT = pathlib.Path(__file__).parents[3]
LOCK = ROOT / "launch" / "tpu" / "requirements.lock"
EXTRAS = ("tpu", "jetstream", "grpc", "gcs")
# Pages for those who train on TPUs, and what needs an extra in them.
PAGES = ("tpu.md", "resume.md", "engine.md")
NEEDS = {"gs://": "gcs", "grpc://": "grpc"}


def required(extras=EXTRAS) -> set[str]:
  """Names of the packages that setup.py requires with these extras."""
  with mock.patch("setuptools.setup"):
    values = runpy.run_path(str(ROOT / "setup.py"))
  wanted = list(values["REQUIRED"])
  for extra in extras:
    wanted += values["EXTRAS"][extra]
  return {_name(re.split(r"[\[<>=]", word)[0]) for word in wanted}


def _name(text: str) -> str:
  return text.strip().lower().replace("_", "-")


def _lines() -> list[str]:
  """Returns the lines of the lock file that name a package."""
  lines = LOCK.read_text().splitlines()
  return [line for line in lines if line and not line.startswith("#")]


class TpuLockTest(absltest.TestCase):
  def test_holds_all_that_is_required_each_at_one_version(self):
    lines = _lines()
    for line in lines:
      self.assertRegex(line, r"^[A-Za-z0-9._-]+==[0-9][^ ]*( ; .*)?$")
    locked = {_name(line.partition("==")[0]) for line in lines}
    self.assertEmpty(required() - locked)
    self.assertContainsSubset(
      {"google-jetstream", "jax", "jaxlib", "libtpu"}, locked
    )

  def test_has_the_extras_of_the_pages_for_tpus(self):
    extras = set()
    for page in PAGES:
      text = (ROOT / "docs" / page).read_text()
      for names in re.findall(
        r"agentrl_jax\[([\w,]+)\]|'\.\[([\w,]+)\]'", text
      ):
        extras |= {e for name in names for e in name.split(",") if e}
      extras |= {extra for scheme, extra in NEEDS.items() if scheme in text}
    self.assertIn("gcs", extras)
    extras.discard("plan")  # of the machine that plans, which has no TPU
    self.assertContainsSubset(extras, EXTRAS)
    locked = {_name(line.partition("==")[0]) for line in _lines()}
    self.assertEmpty(required(extras) - locked)

  def test_is_made_with_these_extras(self):
    wanted = [f"--extra {extra}" for extra in EXTRAS]
    rule = (ROOT / "Makefile").read_text().partition("\nlock:\n")[2]
    for text in (rule.partition("\n\n")[0], LOCK.read_text()):
      self.assertCountEqual(re.findall(r"--extra \w+", text), wanted)

  def test_names_no_index(self):
    for line in _lines():
      self.assertNotRegex(line, r"://|--|@")

  def test_the_image_copies_what_there_is(self):
    text = (ROOT / "launch" / "gke" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) \S+$", text, re.M)
    self.assertContainsSubset(
      {"agentrl_jax", "environments", "configs", "launch"}, copied
    )
    for path in copied:
      self.assertTrue((ROOT / path).exists(), path)
