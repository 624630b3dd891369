"""Invalid sizes are refused; valid ones give compiled shapes."""

import pathlib
import tempfile
import unittest
from unittest import mock

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from tests.settings import engine_config, rollouts_config


class EngineConfigTest(unittest.TestCase):
  def test_wrong_sizes_are_refused_by_name(self):
    good = dict(slots=(4,), context=64)
    for changes in (
      dict(slots=()),
      dict(lengths=(32, 128)),
      dict(prefill_chunks=(64, 16)),
      dict(prefill_chunks=()),
      dict(cache_tokens=(128, 128)),
      dict(cache_tokens=(8,)),
    ):
      with self.assertRaisesRegex(ConfigError, next(iter(changes))):
        engine_config(**(good | changes))

  def test_pages_are_counted_per_policy_slot(self):
    config = engine_config(
      slots=(4, 2), context=60, page_size=16, cache_tokens=(128, 100)
    )
    self.assertEqual([config.num_pages(n) for n in range(2)], [8, 6])
    for context, size in (
      (8192, 128),
      (960, 64),
      (320, 32),
      (64, 16),
      (50, 16),
    ):
      config = engine_config(slots=(4, 2), context=context)
      self.assertEqual(config.tokens_per_page, size)
      pages = -(-context // size)
      self.assertEqual(
        [config.num_pages(n) for n in range(2)], [4 * pages, 2 * pages]
      )

  def test_sizes_differ_by_four_and_end_at_one(self):
    config = engine_config(slots=(128, 2), context=64)
    self.assertEqual(config.slot_sizes(128), (8, 32, 128))
    self.assertEqual(config.slot_sizes(2), (1, 2))

  def test_drafts_of_few_slots_or_of_all_are_computed_in_a_step(self):
    config = engine_config(slots=(128,), context=64, draft_tokens=4)
    self.assertEqual(config.draft_plan(128).sizes, (16, 64, 128))
    self.assertEqual(config.draft_plan(1).sizes, (1,))
    self.assertEqual(config.tokens_per_call, 5 * config.steps_per_sync)
    config = engine_config(slots=(128,), context=64, draft_tokens=0)
    self.assertIsNone(config.draft_plan(128))

  def test_the_shortest_shape_that_fits_is_taken(self):
    config = engine_config(
      slots=(8,), context=512, lengths=(128, 256), page_size=64
    )
    widths = [config.table_width(n) for n in (1, 2, 3, 5, 8)]
    self.assertEqual(widths, [2, 2, 4, 8, 8])
    chunks = [config.prefill_chunk(n) for n in (1, 16, 17, 999)]
    self.assertEqual(chunks, [16, 16, 64, 64])


class RolloutsConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    ("", ()),
    ("a:1", ("a:1",)),
    ("10.0.0.1:7100,10.0.0.2:7100", ("10.0.0.1:7100", "10.0.0.2:7100")),
    ('("10.0.0.1:7100",)', ("10.0.0.1:7100",)),
    ("('a:1', 'b:2')", ("a:1", "b:2")),
    ("[::1]:7100,b:2", ("[::1]:7100", "b:2")),
  )
  def test_addresses(self, servers, addresses):
    self.assertEqual(rollouts_config(servers=servers).addresses, addresses)

  @parameterized.parameters(
    (dict(servers="a"), "'a': name each as host:port"),
    (dict(servers="http://a:1"), "name each as host:port"),
    (dict(servers="a:1,b:2,a:1"), "names a server twice"),
    (dict(model="qwen"), "read where rollouts.protocol is openai"),
    (dict(need_seeds=False), "read where rollouts.protocol is openai"),
  )
  def test_refuses(self, changes, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      rollouts_config(**changes)

  def test_a_token_is_in_a_file_or_the_environment(self):
    self.assertEqual(rollouts_config().read_token(), "")
    named = rollouts_config(token_file="env:TOKEN_OF_A_TEST")
    with self.assertRaisesRegex(ConfigError, "env:TOKEN_OF_A_TEST cannot"):
      named.read_token()
    with mock.patch.dict("os.environ", TOKEN_OF_A_TEST="secret"):
      self.assertEqual(named.read_token(), "secret")
    with self.assertRaisesRegex(ConfigError, "/nowhere cannot be read"):
      rollouts_config(token_file="/nowhere").read_token()

  def test_the_token_is_the_first_line(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "token")
      config = rollouts_config(token_file=str(path))
      path.write_text(" secret \r\nof the pod in zone b\n")
      self.assertEqual(config.read_token(), "secret")
      for content in (b"", b"\nsecret\n", b"  \n", b"se\xc3\xa9cret", b"\xff"):
        path.write_bytes(content)
        with self.assertRaisesRegex(
          ConfigError, "first line of rollouts.token_file="
        ):
          config.read_token()
