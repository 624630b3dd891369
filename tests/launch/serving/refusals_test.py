"""Words of servers for a full context, and words that mean another thing."""

from absl.testing import absltest, parameterized

from launch.serving.refusals import is_filtered, is_full_context

FULL = {
  "openai": (
    "This model's maximum context length is 8192 tokens. However, "
    "your messages resulted in 8227 tokens. Please reduce the length "
    "of the messages."
  ),
  "openai's code": '{"error": {"code": "context_length_exceeded"}}',
  "openai, newer": (
    "Your input exceeds the context window of this model. Please "
    "adjust your input and try again."
  ),
  "openai, parts": (
    "Invalid 'messages[1].content': string too long. Expected a "
    "string with maximum length 1048576, but got 1100000 instead."
  ),
  "openai, messages": (
    "Invalid 'messages': array too long. Expected an array with "
    "maximum length 2048, but got an array with length 2049 instead."
  ),
  "vllm": (
    "'max_tokens' or 'max_completion_tokens' is too large: 2000. This"
    " model's maximum context length is 4096 tokens and your request "
    "has 2104 input tokens (2000 > 4096 - 2104)."
  ),
  "vllm, passed": (
    "You passed 5000 input tokens and requested 0 output tokens. "
    "However, the model's context length is only 4096 tokens, "
    "resulting in a maximum input length of 4096 tokens."
  ),
  "vllm, decoder": (
    "The decoder prompt (length 5000) is longer than the maximum "
    "model length of 4096. Make sure that `max_model_len` is no "
    "smaller."
  ),
  "sglang": (
    "The input (5000 tokens) is longer than the model's context "
    "length (4096 tokens)."
  ),
  "sglang, requested": (
    "Requested token count exceeds the model's maximum context length"
    " of 4096 tokens. You requested a total of 5000 tokens"
  ),
  "llama.cpp": (
    "request (5000 tokens) exceeds the available context size (4096 "
    "tokens), try increasing it"
  ),
  "llama.cpp's type": '{"type": "exceed_context_size_error", "n_ctx": 4096}',
  "llama.cpp, older": (
    "the request exceeds the available context size. try increasing "
    "the context size or enable context shift"
  ),
  "lm studio": "Context size has been exceeded.",
  "lm studio, keep": (
    "Trying to keep the first 15857 tokens when context the "
    "overflows. However, the model is loaded with context length of "
    "only 4096 tokens, which is not enough."
  ),
  "lm studio, tokens": (
    "The number of tokens to keep from the initial prompt is greater "
    "than the context length."
  ),
  "lm studio, n_keep": "Error: n_keep: 8433 >= n_ctx: 8192",
  "lm studio, reached": "Reached context length of 4096 tokens with this model",
  "tgi": (
    "Input validation error: `inputs` must have less than 4096 "
    "tokens. Given: 5000"
  ),
  "tgi, sum": (
    "Input validation error: `inputs` tokens + `max_new_tokens` must "
    "be <= 4096. Given: 3000 `inputs` tokens and 2000 "
    "`max_new_tokens`"
  ),
  "gemini": (
    "The input token count (5000) exceeds the maximum number of "
    "tokens allowed (4096)."
  ),
  "gemini, context": "Your input context is too long.",
  "ollama": "prompt too long; exceeded max context length by 5000 tokens",
  "ollama, input": "the input length exceeds the context length",
  "tensorrt-llm": (
    "Cannot process new request: Prompt length (5056) exceeds maximum"
    " sequence length (2048)"
  ),
  "tensorrt-llm, sum": (
    "The sum of prompt length (5000.0), query length (0) should not "
    "exceed max_num_tokens (4096)"
  ),
  "tensorrt-llm, default": (
    "default_max_tokens (-904) must be greater than 0, "
    "default_max_tokens (-904) = max_seq_len (4096) - "
    "splited_prompt_len (5000)"
  ),
  "anthropic": "prompt is too long: 201266 tokens > 200000 maximum",
  "anthropic, sum": (
    "input length and `max_tokens` exceed context limit: 195261 + "
    "12288 > 204650, decrease input length or `max_tokens` and try "
    "again"
  ),
  "anthropic's type": (
    '{"type": "request_too_large", "message": "Request exceeds the '
    'maximum size"}'
  ),
  "bedrock": "Input is too long for requested model.",
  "bedrock, tokens": (
    "ValidationException: Too many input tokens. Max input tokens: "
    "8192, request input token count: 9000"
  ),
  "litellm": (
    "litellm.ContextWindowExceededError: litellm.BadRequestError: "
    "HostedvllmException"
  ),
  "mistral": (
    "Prompt contains 65673 tokens and 0 draft tokens, too large for "
    "model with 32768 maximum context length"
  ),
  "mistral, prompt": (
    "The number of tokens in the prompt exceeds the model's maximum "
    "context length of 32768"
  ),
  "azure": (
    "Input tokens exceed the configured limit of 272000 tokens. Your "
    "messages resulted in 509178 tokens."
  ),
  "deepseek": (
    "This model's maximum context length is 65536 tokens. However, "
    "you requested 73149 tokens (65000 in the messages, 8149 in the "
    "completion)."
  ),
  "xai": (
    "This model's maximum prompt length is 131072 but the request "
    "contains 537812 tokens."
  ),
  "groq": "Please reduce the length of the messages or completion.",
  "copilot": "prompt token count of 51808 exceeds the limit of 12288",
  "openrouter": (
    "This endpoint's maximum context length is 131072 tokens. "
    "However, you requested about 150000 tokens"
  ),
  "poolside": (
    "Input length 300000 exceeds the maximum allowed input length of "
    "262144 tokens."
  ),
  "minimax": "invalid params, context window exceeds limit",
  "moonshot": (
    "Invalid request: Your request exceeded model token limit: 262144"
  ),
  "moonshot, length": "Input token length too long",
  "z.ai": "model_context_window_exceeded",
  "dashscope": "Range of input length should be [1, 98304]",
  "cohere": (
    "too many tokens: size limit exceeded by 11326 tokens. Try using "
    "shorter or fewer inputs."
  ),
  "fireworks": (
    "The prompt is too long: 5000, model maximum context length: 4095"
  ),
  "perplexity": "The total length of all messages is too long.",
  "mlx": "Prompt exceeds maximum context length",
  "other": "token limit exceeded for this model",
  "overflow": "context overflow: 5000 of 4096",
  "number": "The number of tokens in your prompt exceeds 4096.",
  "prompt length": "This model's maximum prompt length is 131072.",
  "configured": (
    "Prompt has 70000 tokens, but the configured context size is 65536 tokens"
  ),
  "text generation web ui": "This model maximum context length is 2048 tokens.",
  "hugging face": "The request contains 5000 tokens, which exceeds the limit",
  "vertex": (
    "Unable to submit request because the input token count is 5000 but model "
    "only supports up to 4096."
  ),
  "z.ai, length": "Prompt exceeds max length",
  "azure, messages": (
    "Messages have 5000 tokens, which exceeds the max limit of 4096 tokens."
  ),
  "doubao": "Total tokens of image and text exceed max message tokens",
  "mlc": (
    "Request prompt has 5000 tokens in total, larger than the model input "
    "length limit 4096."
  ),
  "cerebras": "Current length is 8500 while limit is 8192",
  "what is left": "max_tokens must be at least 1, got -904.",
  "window": "The context window is 4096 tokens, and 5000 were given",
  "total": "The total number of tokens (5000) exceeds the limit (4096)",
  "codes": '{"code": "prompt_too_long"}',
  "text": "Input text is too long.",
  "chinese": "输入长度超过限制",
}
OTHER = {
  "model": "The model `gpt-9` does not exist or you do not have access to it.",
  "model, ollama": 'model "qwen" not found, try pulling it first',
  "model, vllm": "The model `adder` does not exist.",
  "key": "Incorrect API key provided: sk-1. You can find your API key at",
  "key, gemini": "API key not valid. Please pass a valid API key.",
  "max_tokens": (
    "Unsupported parameter: 'max_tokens' is not supported with this "
    "model. Use 'max_completion_tokens' instead."
  ),
  "temperature": (
    "Unsupported value: 'temperature' does not support 0 with this "
    "model. Only the default (1) value is supported."
  ),
  "seed": "Unrecognized request argument supplied: seed",
  "answer": (
    "max_tokens is too large: 100000. This model supports at most "
    "16384 completion tokens, whereas you provided 100000."
  ),
  "answer, qwen": "Range of max_tokens should be [1, 8192]",
  "answer, deepseek": (
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"
  ),
  "stops": "The number of stop sequences exceeds the maximum of 4",
  "answer's length": "The output length exceeds the maximum of 512 tokens",
  "answer, none": "max_tokens must be at least 1, got 0.",
  "tools": (
    "Invalid 'tools': array too long. Expected an array with maximum "
    "length 128, but got an array with length 200 instead."
  ),
  "tool's text": (
    "Invalid 'tools[0].function.description': string too long. "
    "Expected a string with maximum length 1024, but got 4000 "
    "instead."
  ),
  "tools, vllm": (
    '"auto" tool choice requires --enable-auto-tool-choice and '
    "--tool-call-parser to be set"
  ),
  "inputs": "Input validation error: `inputs` must be a string",
  "json": "Expecting ',' delimiter: line 1 column 54 (char 53)",
  "roles": "Conversation roles must alternate user/assistant/user/assistant",
  "image": "Invalid image: the file is too large",
  "rate": (
    "Rate limit reached for gpt-4 on tokens per min (TPM): Limit "
    "10000, Requested 12000. The input token count exceeds the limit."
  ),
  "quota": "You exceeded your current quota, please check your plan.",
  "html": "<html><body><h1>502 Bad Gateway</h1></body></html>",
  "unknown field": "Unknown parameter: 'num_ctx'.",
}


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


if __name__ == "__main__":
  absltest.main()
