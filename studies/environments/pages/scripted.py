"""Scripted policies: one follows the links, as the tasks ask."""

import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import GENERIC, ScriptedPolicies, ScriptedPolicy
from studies.environments.pages.trail import LINK


class FollowLinks(ScriptedPolicy):
  """Opens the page of each link, and answers the last one."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls `open` with the last page that was found, then `answer`."""
    left, page = map(int, re.findall(r"\d+", messages[0].content))
    for message in messages[1:]:
      if message.role == "tool":
        link = LINK.search(message.content)
        page = int(link[1] if link else message.content)
        left -= 1
    if left > 0:
      return self.call("open", page=page, left=left)
    return self.call("answer", page=page)


POLICIES: ScriptedPolicies = {**GENERIC, "follow_links": FollowLinks}
