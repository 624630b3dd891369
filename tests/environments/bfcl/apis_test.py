"""Tests of BFCL's functions: refused calls and independent instances."""

import decimal
import json
import unittest

from environments.bfcl.apis import APIs
from tests.environments.bfcl.packages import require_packages

HUGE = 10**18


def fresh(*classes, config=None):
  return APIs(classes, config or {}, is_long=False)


class APIsTest(unittest.TestCase):
  def setUp(self):
    require_packages()

  def test_endless_sums_are_refused(self):
    for name, arguments in (
      ("power", {"base": HUGE, "exponent": HUGE}),
      ("power", {"exponent": HUGE, "base": -2}),
      ("power", {"base": 2, "exponent": -(10**9)}),
      ("power", {"base": 2, "exponent": 10**400}),
      ("round_number", {"number": 5, "decimal_places": -HUGE}),
      ("square_root", {"number": 2, "precision": HUGE}),
      ("logarithm", {"value": 2, "base": 3, "precision": HUGE}),
    ):
      with self.subTest(name=name, arguments=arguments):
        self.assertIn("digits", fresh("MathAPI").call(name, (), arguments))

  def test_other_sums_are_computed(self):
    for name, arguments, result in (
      ("power", {"base": 2, "exponent": 10}, "1024"),
      ("power", {"base": 0, "exponent": HUGE}, "0"),
      ("power", {"base": 1, "exponent": 10**400}, "1"),
      ("power", {"base": 2.5, "exponent": 2}, "6.25"),
      ("round_number", {"number": 2.345, "decimal_places": 1}, "2.3"),
      ("add", {"a": HUGE, "b": 1}, "1000000000000000001"),
    ):
      with self.subTest(name=name, arguments=arguments):
        self.assertEqual(
          fresh("MathAPI").call(name, (), arguments), f'{{"result": {result}}}'
        )

  def test_precision_of_the_process_does_not_change(self):
    before = decimal.getcontext().prec
    arguments = {"number": 2, "precision": before + 5}
    fresh("MathAPI").call("square_root", (), arguments)
    self.assertEqual(decimal.getcontext().prec, before)

  def test_endless_folders_are_refused(self):
    apis = fresh("GorillaFileSystem")
    apis.call("mkdir", (), {"dir_name": "d0"})
    for n in range(1, 40):  # each folder holds the last one twice
      inner, outer = f"d{n - 1}", f"d{n}"
      apis.call("mkdir", (), {"dir_name": outer})
      apis.call("cp", (), {"source": inner, "destination": "copy"})
      apis.call("mv", (), {"source": inner, "destination": outer})
      apis.call("mv", (), {"source": "copy", "destination": outer})
    reply = apis.call("find", (), {"path": "."})
    self.assertIn("paths", reply)
    self.assertTrue(reply.startswith("Error during execution"))

  def test_folder_inside_itself_agrees_with_nothing(self):
    pair = [fresh("GorillaFileSystem") for _ in range(2)]
    for apis in pair:
      for name in (".", "b"):
        apis.call("mkdir", (), {"dir_name": name})
      apis.call("mv", (), {"source": ".", "destination": "b"})
    self.assertIn("paths", pair[0].call("ls", (), {}))
    self.assertFalse(pair[0].agrees_with(pair[1]))

  def test_instances_share_no_state(self):
    config = {"TicketAPI": {"current_user": "ann"}}
    first = fresh("TicketAPI", config=config)
    first.call("create_ticket", (), {"title": "late"})
    second = fresh("TicketAPI", config=config)
    self.assertFalse(first.agrees_with(second))
    self.assertEqual(second.call("get_user_tickets", (), {}), "[]")
    self.assertEqual(config, {"TicketAPI": {"current_user": "ann"}})
    ticket = json.loads(second.call("create_ticket", (), {"title": "late"}))
    self.assertEqual(ticket["id"], 1)
    self.assertTrue(first.agrees_with(second))
