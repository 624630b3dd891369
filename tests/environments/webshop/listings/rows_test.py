"""Files of JSON are read in all forms, and broken ones are refused."""

import gzip
import json
import pathlib
import tempfile
import unittest
from unittest import mock

from agentrl_jax.errors import ConfigError
from environments.webshop.listings import rows
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

  def test_all_forms_with_windows_of_any_size(self):
    for window in (1, 2, 7, 100, 1 << 20):
      self.enterContext(mock.patch.object(rows, "WINDOW", window))
      for path in self.forms():
        with self.subTest(path=path.name, window=window):
          self.assertEqual([row for _, row in read_rows(path)], ROWS)

  def test_members_of_an_object(self):
    members = {"number": 123_456}  # longer than the first window
    members |= {f"B{i}": {"attributes": ["soft"] * i} for i in range(50)}
    for window in (1, 5, 1 << 20):
      self.enterContext(mock.patch.object(rows, "WINDOW", window))
      path = self.write(json.dumps(members, indent=1))
      self.assertEqual(dict(read_members(path)), members)

  def test_empty_files_have_no_rows(self):
    for text in ("", "\n", "[]", " [ ] "):
      self.assertEqual(list(read_rows(self.write(text))), [])
    self.assertEqual(list(read_members(self.write("{}"))), [])

  def test_broken_files_are_refused_with_the_place(self):
    for text, message in (
      ('{"a": 1}\n{', ":2 is not JSON"),
      ('{"a": 1}\n7', ":2 is not a JSON object"),
      ('[{"a": 1}, 7]', "item 2 is not a JSON object"),
      ('[{"a": 1}, {"b": ]', 'is not JSON near \'{"b": ]'),
      ('[{"a": 1}', "ends in the middle"),
    ):
      with (
        self.subTest(text=text),
        self.assertRaisesRegex(ConfigError, message),
      ):
        list(read_rows(self.write(text)))
    for text in ("[]", '{"a" 1}', '{"a": 1'):
      with self.subTest(text=text), self.assertRaises(ConfigError):
        list(read_members(self.write(text)))

  def test_the_size_of_a_value_is_limited(self):
    self.enterContext(mock.patch.object(rows, "WINDOW", 10))
    self.enterContext(mock.patch.object(rows, "MAX_VALUE", 100))
    with self.assertRaisesRegex(ConfigError, "is not JSON near"):
      list(read_rows(self.write('[{"a": "' + "x" * 10_000)))
