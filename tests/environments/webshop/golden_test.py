"""Default tasks stay what they are: policies have been trained on them."""

import hashlib
import unittest

from agentrl_jax.data.split import SPLITS
from agentrl_jax.data.trajectory import Task
from environments.webshop import WebShop

# Of 24 tasks of each split; changes only with a good reason, told to users.
DIGESTS = {
  "easy": "3b9dc5976f90625fda3f5cbc15f5c4049bc4f77ada1abbfeca38419a663e87e1",
  "hard": "e007fd9808a694a5042e4bd056405874ba38e50316690d1e523504872c78f8f7",
}


class GoldenTest(unittest.IsolatedAsyncioTestCase):
  async def test_tasks_are_what_they_were(self):
    for difficulty, digest in DIGESTS.items():
      with self.subTest(difficulty):
        found = await self.digest(WebShop(difficulty=difficulty))
        self.assertEqual(found, digest)

  def test_hard_is_the_default(self):
    task = Task("webshop", "test", 0)
    wanted = WebShop(difficulty="hard").find(task)[1]
    self.assertEqual(WebShop().find(task)[1], wanted)

  async def digest(self, environment):
    digest = hashlib.sha256()
    for split in SPLITS:
      for index in range(24):
        task = Task("webshop", split, index)
        async with environment.open(task, seed=0) as session:
          for message in (await session.reset()).messages:
            digest.update(message.content.encode())
        catalogue, goal = environment.find(task)
        shelf = [p.canonical_text + p.id for p in catalogue.products]
        digest.update(repr((goal, shelf)).encode())
    return digest.hexdigest()


if __name__ == "__main__":
  unittest.main()
