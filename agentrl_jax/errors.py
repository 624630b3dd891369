"""Every error the framework raises on purpose, by the boundary it crosses.

A policy's mistake is no error: it is a message to the policy. What stands here
is for people, and each says what was found, what is allowed and what to do.
"""

import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

_HALF = re.compile("[\ud800-\udfff]")


def _unicode(argument: object) -> object:
  return (
    _HALF.sub("\ufffd", argument) if isinstance(argument, str) else argument
  )


class AgentRLError(Exception):
  """The root: catch it to catch what the framework knows about.

  Half a surrogate pair in a text becomes U+FFFD, so that each can be logged and
  sent: texts of others stand in many messages.
  """

  def __init__(self, *arguments: object):
    super().__init__(*map(_unicode, arguments))


class ConfigError(AgentRLError, ValueError):
  """A setting is wrong; raised before anything is compiled or started."""


class RunInUse(AgentRLError):
  """Another process works in a run's folder, perhaps one that is ending."""


class EnvironmentFault(AgentRLError):
  """An environment broke: the attempt is retried, then masked, never scored."""


class SchemaFault(EnvironmentFault, ValueError):
  """A tool has a schema that cannot be shown to a policy."""


class MessageFault(EnvironmentFault, ValueError):
  """A message that the chat template cannot show as what it is."""


class GeneratorFault(AgentRLError):
  """The rollout engine could not answer; its cause is chained."""


class GrammarFault(GeneratorFault):
  """An answer's grammar allows nothing more, or not what was sampled.

  Its own request fails with it; the engine is well.
  """


class ListenerFault(GeneratorFault):
  """The listener of an answer failed; the engine is well, the cause chained."""


class ServerFull(GeneratorFault):
  """The engine takes no more requests now; try again later."""


class PromptTooLong(GeneratorFault):
  """Prompt and answer budget do not fit in the engine's context."""


class QueueClosed(AgentRLError):
  """The other side of a queue has gone."""


class DeadlineExceeded(AgentRLError, TimeoutError):
  """A wait was too long. Says who waited for whom and where to look."""


class NotWritten(AgentRLError, OSError):
  """A file could not be written, as on a full disk; names path and space."""


class NotFinite(AgentRLError):
  """An update came to numbers that are none; nobody is given its params."""


class Collapsed(AgentRLError):
  """The policy has collapsed, and the config says that the run ends then."""


class CheckpointError(AgentRLError):
  """A checkpoint is corrupt or of another shape; names file and leaf."""


def refuse_constant(name: str) -> NoReturn:
  """Raises ValueError for NaN and the infinities: `json`'s `parse_constant`."""
  raise ValueError(f"{name} is no JSON number")


def suggestion(found: str, allowed: Iterable[str]) -> str:
  """The names nearest to one that is not there, as " (did you mean x or y?)".

  Empty if none of them resembles it.
  """
  near = difflib.get_close_matches(found, list(allowed), n=3, cutoff=0.7)
  return f" (did you mean {' or '.join(near)}?)" if near else ""
