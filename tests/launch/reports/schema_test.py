"""The script of the page and the schema name the same fields."""

import dataclasses
import inspect
import re
import unittest

from launch.reports import schema
from launch.reports.html import viewer_script

# Of the browser and the language, and of the script's own objects.
_FOREIGN = """
  abs activeElement addEventListener age all api append body by catch
  charCodeAt createElement dataset delete entries escape every exp filter find
  findIndex flatMap focus from gap get getAttribute getElementById has hash
  hidden includes innerHTML join json length map max message min ok panels
  pipeThrough preventDefault push querySelector querySelectorAll reduce
  removeAttribute replace replaceChildren replaceState reverse round
  scrollIntoView set setAttribute size slice some sort startsWith stream
  stringify target textContent toFixed toLocaleString toPrecision unsure value
  viewer visibilityState
"""


def fields() -> set[str]:
  classes = [
    each
    for _, each in inspect.getmembers(schema, inspect.isclass)
    if dataclasses.is_dataclass(each)
  ]
  return {field.name for each in classes for field in dataclasses.fields(each)}


class SchemaTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    script = re.sub(r"//.*", "", viewer_script())
    cls.read = set(re.findall(r"(?<!\.)\.([a-z]\w*)", script))
    cls.read |= {  # taken out of an object: ({ role, content }) => ...
      name
      for names in re.findall(r"\(\{ ([\w, ]+) \}\)", script)
      for name in names.split(", ")
    }

  def test_the_script_reads_no_field_that_is_not_in_the_schema(self):
    foreign = set(_FOREIGN.split())
    self.assertEqual(self.read - fields() - foreign, set())

  def test_each_field_of_the_schema_is_read_by_the_script(self):
    self.assertEqual(fields() - self.read, set())
