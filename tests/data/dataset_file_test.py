"""Rows are read from every kind of file; what is odd is told by its place."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from agentrl_jax.data.dataset_file import read_rows
from agentrl_jax.errors import ConfigError

ROWS = [{"question": "a\u2028b", "answer": None}, {"question": "\u00e9"}]


class DatasetFileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )

  def rows(self, name, content):
    path = self.folder / name
    path.write_bytes(content)
    return list(read_rows(path))

  @parameterized.named_parameters(
    ("lines", "\n\n".join(json.dumps(r, ensure_ascii=False) for r in ROWS)),
    ("windows", "\r\n".join(json.dumps(row) for row in ROWS)),
    ("mark", "\ufeff" + "\n".join(json.dumps(row) for row in ROWS)),
    ("list", "\n " + json.dumps(ROWS, indent=2)),
  )
  def test_json(self, text):
    text = text.replace("null", "NaN")  # as pandas and json write what misses
    rows = self.rows("a.jsonl", text.encode())
    self.assertEqual([row.columns for row in rows], ROWS)
    self.assertEqual([row.problem for row in rows], ["", ""])

  def test_parquet(self):
    try:
      import pyarrow
      from pyarrow import parquet
    except ModuleNotFoundError:
      self.skipTest("pyarrow is not installed")
    path = self.folder / "a.parquet"
    nested = [{"n": 1, "of": {"x": ["y"]}}, {"n": 2, "of": {"x": []}}]
    parquet.write_table(pyarrow.Table.from_pylist(nested), path)
    rows = list(read_rows(path))
    self.assertEqual([row.columns for row in rows], nested)
    self.assertEndsWith(rows[1].where, "a.parquet, row 2")
    path.write_bytes(path.read_bytes()[:-20])
    with self.assertRaisesRegex(ConfigError, "a.parquet is no parquet file"):
      list(read_rows(path))

  @parameterized.parameters(
    (b'{"a": 1', "no JSON in UTF-8"),
    (b"[1]x", None),
    (b"7", "no JSON object: 7"),
    (b'{"a": Infinity}', "Infinity is no JSON number"),
    (b'{"a": "\xff"}', "no JSON in UTF-8"),
    (b'{"a":' + b"[" * 100_000, "no JSON in UTF-8"),
  )
  def test_a_bad_line_is_told(self, line, problem):
    if problem is None:  # the file begins as a list
      with self.assertRaisesRegex(ConfigError, "begins as a JSON list"):
        self.rows("a.jsonl", line)
      return
    good, bad, last = self.rows("a.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 2}')
    self.assertIn(problem, bad.problem)
    self.assertEndsWith(bad.where, "a.jsonl, line 2")
    self.assertEqual((good.columns, last.columns), ({"a": 1}, {"a": 2}))

  def test_files_that_cannot_be_read(self):
    for name in ("absent.jsonl", "absent.parquet"):
      with self.assertRaisesRegex(ConfigError, f"{name} cannot be read"):
        list(read_rows(self.folder / name))
    with self.assertRaisesRegex(ConfigError, "ends with '.csv'"):
      self.rows("a.csv", b"a,b")
    self.assertEmpty(self.rows("empty.jsonl", b"\n"))
