"""Default tasks stay what they are: policies have been trained on them."""

import hashlib
import unittest

from agentrl_jax.data.split import SPLITS
from agentrl_jax.data.trajectory import Task
from environments.webshop import WebShop

# Of 24 tasks of each split; changes only with a good reason, told to users.
DIGEST = "3b9dc5976f90625fda3f5cbc15f5c4049bc4f77ada1abbfeca38419a663e87e1"


class GoldenTest(unittest.IsolatedAsyncioTestCase):
  async def test_default_tasks_are_what_they_were(self):
    environment, digest = WebShop(), hashlib.sha256()
    for split in SPLITS:
      for index in range(24):
        task = Task("webshop", split, index)
        async with environment.open(task, seed=0) as session:
          for message in (await session.reset()).messages:
            digest.update(message.content.encode())
        catalogue, goal = environment.find(task)
        shelf = [p.canonical_text + p.id for p in catalogue.products]
        digest.update(repr((goal, shelf)).encode())
    self.assertEqual(digest.hexdigest(), DIGEST)


if __name__ == "__main__":
  unittest.main()
