"""Files of JSON are read in all forms, and broken ones are refused."""

import gzip
import json
import pathlib
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from environments.webshop.listings.rows import read_members, read_rows

ROWS = [
  {"asin": f"B{i}", "text": f'\u2028 "[{i}]" \\ {"x" * i}'} for i in range(99)
]


class RowsTest(unittest.TestCase):
  def write(self, text, name="listings.json"):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path

  def forms(self):
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    yield self.write(lines)
    yield self.write(f"\n{lines}\n\n", "listings.jsonl.gz")
    yield self.write(json.dumps(ROWS))
    yield self.write(json.dumps(ROWS, indent=2, ensure_ascii=False))
    yield self.write(json.dumps(ROWS), "listings.json.gz")

  def test_all_forms(self):
    for path in self.forms():
      with self.subTest(path=path.name):
        self.assertEqual([row for _, row in read_rows(path)], ROWS)

  def test_members_of_an_object(self):
    members = {f"B{i}": {"attributes": ["soft"] * i} for i in range(50)}
    path = self.write(json.dumps(members, indent=1))
    self.assertEqual(read_members(path), members)

  def test_empty_files_have_no_rows(self):
    for text in ("", "\n", "[]", " [ ] "):
      self.assertEqual(list(read_rows(self.write(text))), [])
    self.assertEqual(read_members(self.write("{}")), {})

  def test_broken_files_are_refused_with_the_place(self):
    for text, message in (
      ('{"a": 1}\n{', ":2 is not JSON"),
      ('{"a": 1}\n7', ":2 is not a JSON object"),
      ('[{"a": 1}, 7]', "item 2 is not a JSON object"),
      ('[{"a": 1}, {"b": ]', "is not JSON"),
    ):
      with (
        self.subTest(text=text),
        self.assertRaisesRegex(ConfigError, message),
      ):
        list(read_rows(self.write(text)))
    for text in ("[]", '{"a" 1}', '{"a": 1'):
      with self.subTest(text=text), self.assertRaises(ConfigError):
        read_members(self.write(text))
