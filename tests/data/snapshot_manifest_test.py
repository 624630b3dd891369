"""The manifest is replaced in one step, and refused if it is invalid."""

import pathlib
import tempfile

from absl.testing import parameterized

from agentrl_jax.data.snapshot_manifest import (
  FILE,
  Manifest,
  Snapshot,
  open_folder,
  read_manifest,
  write_manifest,
)
from agentrl_jax.errors import CheckpointError


def snapshot(publication: int, **changes) -> Snapshot:
  fields = dict(
    publication=publication,
    version=3,
    folder=f"edition_{publication}",
    leaves={"a.b": "float32[2]"},
    checksums={"a.b": 7},
  )
  return Snapshot(**(fields | changes))


class SnapshotManifestTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = open_folder(self.enterContext(tempfile.TemporaryDirectory()))

  def test_comes_back_as_it_was(self):
    self.assertIsNone(read_manifest(self.folder))
    for number in (1, 2):
      manifest = Manifest({0: snapshot(number), 1: snapshot(9)})
      write_manifest(self.folder, manifest)
      self.assertEqual(read_manifest(self.folder), manifest)
    self.assertEqual([p.name for p in self.folder.iterdir()], [FILE])
    self.assertIn('"step":3', (self.folder / FILE).read_text())
    self.assertEqual(manifest.newest, 9)
    self.assertEqual(manifest.folders, {"edition_2", "edition_9"})

  @parameterized.parameters(
    ("edition_1", "../elsewhere"), ('{"a.b":7}', "{}"), ('"a.b":7', '"c":1')
  )
  def test_what_points_elsewhere_or_lacks_a_checksum_is_refused(self, old, new):
    write_manifest(self.folder, Manifest({0: snapshot(1)}))
    path = self.folder / FILE
    path.write_text(path.read_text().replace(old, new, 1))
    with self.assertRaisesRegex(CheckpointError, "is no manifest"):
      read_manifest(self.folder)

  def test_folders_are_absolute_and_buckets_as_they_are(self):
    self.assertEqual(
      str(open_folder("runs/x")), str(pathlib.Path("runs/x").resolve())
    )
    self.assertEqual(str(open_folder("gs://bucket/run")), "gs://bucket/run")
