"""Play of one episode and of one group: sub-agents, waits, retries."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `subagent`, `waits`, `group` and `retry`."""
  return create(
    # A tool with which the policy gives a part of the task to itself, in a
    # context of its own: docs/environments.md.
    subagent=create(
      tool="",  # name of the tool, such as delegate; "": there is none
      # What the policy reads of the tool.
      description="Gives a part of the task to an assistant that has the same "
      "tools and sees only this text. Returns the assistant's result.",
      # First message of a sub-agent.
      system_prompt="Do the task with the tools. Then answer with the result.",
      recap=True,  # the sub-agent reads the environment's first messages too
      max_turns=8,  # answers of a sub-agent; all count for episode.max_turns
    ),
    waits=create(  # of an episode
      session_timeout_s=300.0,  # wait for its environment to open, and to close
      reply_timeout_s=300.0,  # wait for each reply of the environment
      answer_timeout_s=600.0,  # wait for each answer of the engine
    ),
    sampling=create(
      top_k=0,  # likeliest tokens to sample from; training needs 0, all
      top_p=1.0,  # probability to sample from; training needs 1, all
    ),
    # Time after which a group is handed over with the episodes that it has.
    group=create(deadline_s=3600.0),
    retry=create(  # of an attempt that a fault ended
      max_retries=2,  # per attempt
      backoff_s=0.5,  # wait before the first retry; doubles with each
    ),
  )
