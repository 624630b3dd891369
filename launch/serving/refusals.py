"""Reads the reason of a refusal in the words of many servers.

OpenAI's API has no common word for a conversation that is too long: each server
writes a sentence of its own, with status 400, 413, 422 or 500, or in a 200.
"""

import re

_LENGTH = r"(?:length|window|size|limit)"
_TOKENS = r"(?:length|len|tokens?|token count|number of tokens)"
_INPUT = r"(?:prompt|inputs?|messages|conversation|sequence|context|history)"
_EXCEEDS = (
  r"(?:exceed|longer than|larger than|greater than|more than|only support|>)"
)
_MOST = r"(?:maximum|max|most|only|limit|allowed|supported|less than)"

# Each is the words of the servers beside it. A limit of the answer alone, such
# as "max_tokens must be at most 8192", is none: it refuses every request alike.
_FULL_CONTEXT = re.compile(
  "|".join(
    (
      # OpenAI, vLLM, SGLang, DeepSeek, Mistral, Azure, OpenRouter, Fireworks:
      # "This model's maximum context length is 4096 tokens".
      rf"{_MOST}[ _](?:model )?context[ _]?{_LENGTH}",
      # llama.cpp, LM Studio, MiniMax, Anthropic, LiteLLM, z.ai, Ollama:
      # "exceeds the available context size", `ContextWindowExceededError`.
      rf"exceed\w*[^.]{{0,60}}\bcontext[ _]?{_LENGTH}",
      rf"context[ _-]?{_LENGTH}[^.]{{0,40}}(?:exceed|reached|overflow|only)",
      rf"context[ _-]?{_LENGTH} (?:is|of) \d+",
      r"exceeds?_context|context[ _](?:overflow|is full)",
      rf"{_EXCEEDS} [^.]{{0,60}}\bcontext[ _]?{_LENGTH}",
      rf"configured context {_LENGTH}|reached context {_LENGTH}",
      r"context the overflows|\bn_ctx\b|session[ _]len",
      # Anthropic, Bedrock, Ollama, Moonshot, GLM: "prompt is too long".
      rf"\b{_INPUT}'?(?:[ _](?:text|{_TOKENS})){{0,2}}(?: [(][^)]*[)])?,?"
      r"[ _](?:is |are |was )?(?:too[ _](?:long|large)|longer than)",
      r"request_too_large|total length of all messages",
      r"length of tokens in the request",
      r"messages(?:\[\d+\][.\w]*)?'?: (?:array|string) too long",
      # Gemini, Copilot, xAI, Azure, TensorRT-LLM: "The input token count (5000)
      # exceeds the maximum number of tokens allowed".
      rf"\b{_INPUT}[ _]{_TOKENS}\b[^.]{{0,60}}{_EXCEEDS}",
      rf"{_TOKENS} (?:of|in|from) (?:the |your )?(?:\w+ )?{_INPUT}\b"
      rf"[^.]{{0,60}}{_EXCEEDS}",
      # Z.ai, Azure, Doubao, MLC, Cerebras: "Prompt exceeds max length".
      rf"\b{_INPUT}\b(?: have \d+ tokens,? which)? exceeds? (?:the )?max",
      rf"total (?:number of )?tokens\b[^.]{{0,60}}{_EXCEEDS}",
      rf"{_EXCEEDS} [^.]{{0,40}}\b(?:input|prompt)[ _]length",
      r"current length is \d+ while limit",
      # Servers that take the prompt off the answer's limit.
      r"max_(?:completion_)?tokens must be at least 1, got -",
      r"exceed\w* (?:the )?(?:model'?s? )?(?:maximum |max |total )?"
      r"(?:number of (?:input )?tokens|(?:input|prompt|sequence|token|model)"
      r"[ _](?:length|limit|token limit)|max_(?:seq|input|num|model)_\w+)",
      r"maximum (?:prompt|input|model|sequence) (?:token )?length"
      r"(?: is| of)? \d+",
      r"max_seq_len|splited_prompt_len|token limit exceeded",
      r"request contains \d+ tokens",
      # TGI and Together: "`inputs` must have less than 4096 tokens".
      r"inputs`?(?: tokens)?(?: \+ `?max_new_tokens`?)? must "
      r"(?:have less|be <=?)",
      # Bedrock, Cohere, and others in general: "too many input tokens".
      r"too many (?:input |prompt |total )?tokens",
      r"input tokens exceed|reduce (?:the )?(?:length|size) of (?:the |your )?"
      rf"(?:input )?{_INPUT}|reduce your prompt",
      # DashScope, and servers that write Chinese.
      r"range of input length|上下文|输入长度|超过最大长度|超出最大长度",
    )
  )
)
_RATE = re.compile(
  r"rate.?limit|per.?(?:min|day|hour|sec)|too many requests|quota|\btpm\b"
)
_FILTERED = re.compile(
  r"content[ _]?(?:management )?(?:filter|policy)|data_inspection_failed"
)


def is_full_context(status: int, text: str) -> bool:
  """Says if a request was refused because its conversation is too long.

  A rate of tokens that is exceeded is another thing: it passes. 413 is a body
  too large for the server, whatever it writes.
  """
  text = text.lower()
  if status == 429 or _RATE.search(text):
    return False
  return status == 413 or _FULL_CONTEXT.search(text) is not None


def is_filtered(text: str) -> bool:
  """Says if a filter of contents refused this one conversation."""
  return _FILTERED.search(text.lower()) is not None
