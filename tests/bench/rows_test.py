"""Tests of what a benchmark's row keeps."""

import unittest

from bench import rows

FOUND = {
  "times_faster_than": {
    "Tunix": {"median": 1.25, "lowest": 1.0, "highest": 1.5}
  },
  "peers": {"Tunix": "0.1.7"},
  "work": {"model": {"width": 8}, "share": 0.5},
  "words": ["red", "green"],
  "host_ms": {4: {"local": [0.5, 0.25, 1.0]}},
  "hostile": [{"status": 400, "ms": 2.0}, {"status": 400, "ms": 14.0}],
}


class RowsTest(unittest.TestCase):
  def test_each_value_is_kept_with_its_range(self):
    self.assertEqual(
      [tuple(each.values()) for each in rows.flat(FOUND)],
      [
        ("times_faster_than/Tunix", 1.25, 1.0, 1.5),
        ("peers/Tunix", "0.1.7", "", ""),
        ("work/model/width", 8, "", ""),
        ("work/share", 0.5, "", ""),
        ("words", ["red", "green"], "", ""),
        ("host_ms/4/local", 0.5, 0.25, 1.0),
        ("hostile/status", 400, 400, 400),
        ("hostile/ms", 8.0, 2.0, 14.0),
      ],
    )


if __name__ == "__main__":
  unittest.main()
