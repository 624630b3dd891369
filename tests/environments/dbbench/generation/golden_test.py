"""Default tasks stay what they are: policies have been trained on them."""

import hashlib
import unittest

from agentrl_jax.data.split import SPLITS
from environments.dbbench.generation.generator import Generator
from environments.dbbench.prompts import opening

# Of 50 tasks of each split; changes only with a good reason, told to users.
DIGEST = "50911ef9eb374719b444f8ebce21a0515d207fff5bff9c250146428028c5a28e"


class GoldenTest(unittest.TestCase):
  def test_default_tasks_are_what_they_were(self):
    generator, digest = Generator(), hashlib.sha256()
    for split in SPLITS:
      for index in range(50):
        problem = generator.generate(split, index).problem
        for message in opening(problem, "upstream"):
          digest.update(message.content.encode())
        key = (
          problem.tables,
          problem.gold_sql,
          problem.label,
          problem.table_hash,
        )
        digest.update(repr(key).encode())
    self.assertEqual(digest.hexdigest(), DIGEST)


if __name__ == "__main__":
  unittest.main()
