import base64
import gzip
import json
import pathlib
import re
import tempfile
import unittest

from launch.viewing.one_file import write_file
from launch.viewing.server import Viewer
from tests.launch.viewing.a_run import HOSTILE, make_run

_BLOCK = re.compile(
  r'<script type="text/plain" data-api="([^"]*)">([A-Za-z0-9+/=]*)</script>'
)


class OneFileTest(unittest.TestCase):
  def test_holds_all_that_the_server_would_answer(self):
    with tempfile.TemporaryDirectory() as folder:
      run = make_run(pathlib.Path(folder) / "a", updates=2)
      viewer = Viewer(run.root)
      path = pathlib.Path(folder) / "page.html"
      size = write_file(viewer, path)
      page = path.read_text("utf-8")
      self.assertEqual(path.stat().st_size, size)
      blocks = {
        name: json.loads(gzip.decompress(base64.b64decode(text)))
        for name, text in _BLOCK.findall(page)
      }
      listing = json.loads(json.dumps(viewer.listing()))
      self.assertEqual(blocks.pop("trajectories"), listing)
      self.assertEqual(blocks.pop("curves"), viewer.curves())
      self.assertEqual(blocks.pop("now")["name"], "a")
      self.assertEqual(
        blocks,
        {
          f"trajectories/{t['id']}": viewer.trajectory(t["id"])
          for t in listing["trajectories"]
        },
      )
      self.assertFalse([*path.parent.glob("*.partial")])

  def test_loads_nothing_and_repeats_nothing_that_a_policy_wrote(self):
    with tempfile.TemporaryDirectory() as folder:
      run = make_run(pathlib.Path(folder) / "a", updates=1)
      path = pathlib.Path(folder) / "page.html"
      write_file(Viewer(run.root), path)
      page = path.read_text("utf-8")
    self.assertNotIn(HOSTILE, page)
    self.assertNotIn("onerror=", page)
    self.assertNotRegex(page, r'(src|href)="(?!#|data:,")')
    self.assertIn("default-src 'none'", page)
    self.assertEqual(page.count("</html>"), 1)
