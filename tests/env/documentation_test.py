"""The example of docs/environments.md is an environment, by its own proof."""

import pathlib
import re
import unittest

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "environments.md"


def run_example():
  """What the Python blocks of the page define, in its order."""
  blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
  names = {"__name__": __name__}
  exec(compile("".join(blocks), str(DOCUMENT), "exec"), names)
  return names


class DocumentationTest(unittest.TestCase):
  def test_the_example_passes(self):
    proof = run_example()["BackwardsTest"]
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(proof).run(result)
    self.assertTrue(result.wasSuccessful(), result.failures + result.errors)
    self.assertGreater(result.testsRun, 10)


if __name__ == "__main__":
  unittest.main()
