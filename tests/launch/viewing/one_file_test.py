"""The page of a run as one file."""

import base64
import gzip
import json
import pathlib
import re
import tempfile
import unittest

from launch.reports.html import page_json
from launch.viewing.server import Viewer, write_file
from tests.launch.viewing.a_run import HOSTILE, make_run

_BLOCK = re.compile(
  r'<script type="text/plain" data-api="([^"]*)">([A-Za-z0-9+/=]*)</script>'
)


def plain(value):
  return json.loads(page_json(value))


class OneFileTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.viewer = Viewer(make_run(pathlib.Path(folder) / "a", updates=2).root)
    cls.path = pathlib.Path(folder) / "page.html"
    cls.size = write_file(cls.viewer, cls.path)
    cls.page = cls.path.read_text("utf-8")

  def test_holds_all_that_the_server_would_answer(self):
    self.assertEqual(self.path.stat().st_size, self.size)
    self.assertFalse([*self.path.parent.glob("*.partial")])
    blocks = {
      name: json.loads(gzip.decompress(base64.b64decode(text)))
      for name, text in _BLOCK.findall(self.page)
    }
    listing = self.viewer.listing()
    self.assertEqual(blocks.pop("trajectories"), plain(listing))
    self.assertEqual(blocks.pop("curves"), plain(self.viewer.curves()))
    self.assertEqual(blocks.pop("now")["name"], "a")
    self.assertEqual(
      blocks,
      {
        f"trajectories/{t.id}": plain(self.viewer.trajectory(t.id))
        for t in listing.trajectories
      },
    )

  def test_loads_nothing_and_repeats_nothing_that_a_policy_wrote(self):
    self.assertNotIn(HOSTILE, self.page)
    self.assertNotIn("onerror=", self.page)
    self.assertNotRegex(self.page, r'(src|href)="(?!#|data:,")')
    self.assertIn("default-src 'none'", self.page)
    self.assertEqual(self.page.count("</html>"), 1)
