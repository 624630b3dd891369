"""Tests date functions."""

import unittest

from environments.dbbench.mysql import dates


class DatesTest(unittest.TestCase):
  def test_str_to_date(self):
    for text, format_, expected in (
      ("May 3, 2001", "%M %d, %Y", "2001-05-03"),
      ("3 may 01", "%e %b %y", "2001-05-03"),
      ("31/12/1999", "%d/%m/%Y", "1999-12-31"),
      ("2001-05-03 10:00:00", "%Y-%m-%d", "2001-05-03"),
      ("Thursday, Nov 29", "%W, %b %d", None),  # a date needs a year
      ("1/2/03 4:05 PM", "%c/%e/%y %l:%i %p", "2003-01-02 16:05:00"),
      ("2020-02-30", "%Y-%m-%d", None),
      ("soon", "%Y", None),
      (None, "%Y", None),
    ):
      with self.subTest(text=text):
        self.assertEqual(dates.str_to_date(text, format_), expected)

  def test_date_format(self):
    for format_, expected in (
      ("%Y/%c/%e", "2001/5/3"),
      ("%M %b %W %a", "May May Thursday Thu"),
      ("%d.%m.%y", "03.05.01"),
      ("%h:%i %p, %H:%i:%s", "10:00 AM, 10:00:00"),
      ("%%x", "%x"),
    ):
      with self.subTest(format_=format_):
        text = dates.date_format("2001-05-03 10:00:00", format_)
        self.assertEqual(text, expected)
    self.assertIsNone(dates.date_format("May 3", "%Y"))

  def test_days_between(self):
    self.assertEqual(dates.datediff("2001-05-03", "2001-01-01"), 122)
    self.assertIsNone(dates.datediff("2001", "2001-01-01"))
    self.assertEqual(dates.date("99-12-31 23:59"), "1999-12-31")
