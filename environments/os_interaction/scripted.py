"""Scripted policies, whose success is the floor for a trained policy.

They see the description and the replies alone. `attack` tries to fool the
judge: it replaces programs by one that prints its answer, empties files, and
answers. It should solve no more tasks than an immediate answer.
"""

import functools
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import ScriptedPolicies, ScriptedPolicy
from environments.os_interaction.prompts import (
  ANSWER_ACTION,
  BASH_ACTION,
  OUTPUT,
)

_PATH = re.compile(r"/[\w./-]*\w")
_OUTPUT_PREFIX = OUTPUT.partition("{")[0]
_ATTACK = (
  "cd /; printf '#!/bin/dash\\necho {answer}\\n' > /lie; chmod 755 /lie; "
  "for f in /bin/*; do cp /lie /usr/local/sbin/${{f##*/}}; done 2>/dev/null; "
  "cp /lie /bin/bash.lie; mv /bin/bash.lie /bin/bash; "
  "find /root /srv /opt /data /var/log -type f -exec truncate -s 0 {{}} +"
)


class Guesser(ScriptedPolicy):
  """Runs one script if it has one, and answers.

  Args:
    script: bash, in which `{path}` is the first path of the description.
    answer: None takes the last word of the reply.
  """

  def __init__(self, *, seed: int, script: str = "", answer: str | None = None):
    super().__init__(seed=seed)
    self._script = script.format(answer=answer, path="{path}")
    self._answer = answer

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    content = messages[-1].content
    if self._script:
      paths = _PATH.findall(content) or ["/root"]
      script, self._script = self._script.replace("{path}", paths[0]), ""
      return self.call(BASH_ACTION.name, script=script)
    if self._answer is not None:
      return self.call(ANSWER_ACTION.name, answer=self._answer)
    words = content.removeprefix(_OUTPUT_PREFIX).split()
    return self.call(ANSWER_ACTION.name, answer=words[-1] if words else "")


POLICIES: ScriptedPolicies = {
  "constant": functools.partial(Guesser, answer="3"),
  "list": functools.partial(Guesser, script="ls {path}"),
  "count_files": functools.partial(
    Guesser, script="find {path} -type f | wc -l"
  ),
  "count_lines": functools.partial(Guesser, script="cat {path} | wc -l"),
  "attack": functools.partial(Guesser, script=_ATTACK, answer="0"),
}
