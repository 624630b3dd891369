"""Tokenizer with numbered words, for peers that accept only text."""

import tokenizers
import transformers


def make_tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
  """Word w17 is token 17; the last two are padding and end."""
  words = {f"w{n}": n for n in range(vocab_size)}
  model = tokenizers.models.WordLevel(words, unk_token="w0")
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    pad_token=f"w{vocab_size - 1}",
    eos_token=f"w{vocab_size - 2}",
    padding_side="left",
  )


def text_of(tokens) -> str:
  """The text that such a tokenizer reads as these tokens."""
  return " ".join(f"w{token}" for token in tokens)


def rewards(completions) -> list[float]:
  """The share of even tokens in each answer."""
  found = []
  for completion in completions:
    numbers = [int(word[1:]) for word in completion.split()]
    found.append(sum(n % 2 == 0 for n in numbers) / max(len(numbers), 1))
  return found
