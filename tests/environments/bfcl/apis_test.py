"""No call runs for ever, and none is remembered by the process."""

import decimal
import json
import unittest

from environments.bfcl.apis import APIs
from tests.environments.bfcl.packages import require_packages


class GuardsTest(unittest.TestCase):
  def setUp(self):
    require_packages()

  def test_numbers_without_end_are_refused(self):
    apis = APIs(("MathAPI",), {}, is_long=False)
    huge = 10**18
    for name, arguments in (
      ("power", {"base": huge, "exponent": huge}),
      ("power", {"exponent": huge, "base": -2}),
      ("power", {"base": 2, "exponent": -(10**9)}),
      ("round_number", {"number": 5, "decimal_places": -huge}),
      ("square_root", {"number": 2, "precision": huge}),
      ("logarithm", {"value": 2, "base": 3, "precision": huge}),
    ):
      with self.subTest(name=name, arguments=arguments):
        self.assertIn("digits", apis.call(name, (), arguments))

  def test_sums_within_reason_are_done(self):
    apis = APIs(("MathAPI",), {}, is_long=False)
    for name, arguments, result in (
      ("power", {"base": 2, "exponent": 10}, '{"result": 1024}'),
      ("power", {"base": 0, "exponent": 10**18}, '{"result": 0}'),
      ("power", {"base": 2.5, "exponent": 2}, '{"result": 6.25}'),
      (
        "round_number",
        {"number": 2.345, "decimal_places": 1},
        '{"result": 2.3}',
      ),
      ("add", {"a": 10**18, "b": 1}, '{"result": 1000000000000000001}'),
    ):
      with self.subTest(name=name, arguments=arguments):
        self.assertEqual(apis.call(name, (), arguments), result)

  def test_a_precision_is_not_left_behind(self):
    before = decimal.getcontext().prec
    apis = APIs(("MathAPI",), {}, is_long=False)
    apis.call("square_root", (), {"number": 2, "precision": before + 5})
    self.assertEqual(decimal.getcontext().prec, before)

  def test_folders_within_folders_come_to_an_end(self):
    apis = APIs(("GorillaFileSystem",), {}, is_long=False)
    apis.call("mkdir", (), {"dir_name": "d0"})
    for n in range(1, 40):  # each holds the last one twice
      last, this = f"d{n - 1}", f"d{n}"
      apis.call("mkdir", (), {"dir_name": this})
      apis.call("cp", (), {"source": last, "destination": "copy"})
      apis.call("mv", (), {"source": last, "destination": this})
      apis.call("mv", (), {"source": "copy", "destination": this})
    reply = apis.call("find", (), {"path": "."})
    self.assertIn("paths", reply)
    self.assertTrue(reply.startswith("Error during execution"))

  def test_a_folder_in_itself_agrees_with_nothing(self):
    apis = APIs(("GorillaFileSystem",), {}, is_long=False)
    twin = APIs(("GorillaFileSystem",), {}, is_long=False)
    for each in (apis, twin):
      for name in (".", "b"):
        each.call("mkdir", (), {"dir_name": name})
      each.call("mv", (), {"source": ".", "destination": "b"})
    self.assertIn("paths", apis.call("ls", (), {}))
    self.assertFalse(apis.agrees_with(twin))

  def test_fresh_every_time(self):
    config = {"TicketAPI": {"current_user": "ann"}}
    first = APIs(("TicketAPI",), config, is_long=False)
    first.call("create_ticket", (), {"title": "late"})
    second = APIs(("TicketAPI",), config, is_long=False)
    self.assertFalse(first.agrees_with(second))
    self.assertEqual(second.call("get_user_tickets", (), {}), "[]")
    self.assertEqual(config, {"TicketAPI": {"current_user": "ann"}})
    ticket = json.loads(second.call("create_ticket", (), {"title": "late"}))
    self.assertEqual(ticket["id"], 1)
    self.assertTrue(first.agrees_with(second))


if __name__ == "__main__":
  unittest.main()
