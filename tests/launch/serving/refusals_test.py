"""Words of servers for a full context, and words that mean another thing."""

import json
import pathlib

from absl.testing import parameterized

from launch.serving.refusals import is_filtered, is_full_context

# Words of servers: for a full context, and for other things.
WORDS = json.loads(
  pathlib.Path(__file__).with_name("refusals.json").read_text()
)
FULL, OTHER = WORDS["full"], WORDS["other"]


class FullContextTest(parameterized.TestCase):
  @parameterized.named_parameters(FULL.items())
  def test_words_for_a_full_context(self, text):
    for status in (200, 400, 422, 500):
      self.assertTrue(is_full_context(status, text))
    self.assertTrue(is_full_context(400, text.upper()))

  @parameterized.named_parameters(OTHER.items())
  def test_words_for_other_things(self, text):
    for status in (200, 400, 404, 500):
      self.assertFalse(is_full_context(status, text))

  def test_a_body_too_large_is_one_whatever_is_written(self):
    self.assertTrue(is_full_context(413, "<h1>Request Entity Too Large</h1>"))
    self.assertFalse(is_full_context(429, FULL["openai"]))

  def test_a_filter_of_contents(self):
    for text in (
      "The response was filtered due to the prompt triggering Azure OpenAI's "
      "content management policy.",
      '{"error": {"code": "content_filter"}}',
      "<400> InternalError.Algo.DataInspectionFailed: data_inspection_failed",
    ):
      self.assertTrue(is_filtered(text))
    for text in (*FULL.values(), *OTHER.values()):
      self.assertFalse(is_filtered(text))
