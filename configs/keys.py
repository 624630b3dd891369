"""Keys of a config that do not exist: the sentence that refuses one."""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from agentrl_jax.errors import suggestion
from agentrl_jax.renamed import new_name

FLAG = "--config."  # before a key on a command line


def why_unknown(named: str, config: ml_collections.ConfigDict) -> str:
  """Returns why a key is refused, or "" if it exists.

  `named` is the key as it was written, with or without `--config.` before it.
  """
  key = named.removeprefix(FLAG)
  prefix = named[: -len(key)]
  held: Any = config
  done: list[str] = []
  for word in key.split("."):
    if not isinstance(held, ml_collections.ConfigDict):
      # Part of a tuple, perhaps: parsing says what cannot be.
      return ""
    if word not in held:
      if name := new_name(key):
        return f"{named} is now {prefix}{name}"
      place = ".".join(done)
      inside = f"config.{place} has" if place else "the config has"
      return (
        f"{named} is no key of the config{_near(key, word, config)}; "
        f"{inside} {', '.join(sorted(held))}"
      )
    done.append(word)
    held = held[word]
  return ""


def _near(key: str, word: str, config: ml_collections.ConfigDict) -> str:
  """Returns the keys most similar to one that does not exist."""
  keys = [k for k, _ in flat_keys(config)]
  elsewhere = [k for k in keys if k.rpartition(".")[2] == word]
  if elsewhere:
    return f" (did you mean {' or '.join(elsewhere)}?)"
  return suggestion(key, keys) or suggestion(word, sorted(config))


def flat_keys(
  config: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields every key with its sections, as `loss.clip_high`, and its value."""
  for name in config:
    value = config[name]
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      yield from flat_keys(value, f"{above}{name}.")
    else:
      yield f"{above}{name}", value
