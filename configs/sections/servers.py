"""Rollout servers, agents of other libraries, and limits of HTTP requests."""

import ml_collections
from ml_collections.config_dict import create


def get_config() -> ml_collections.ConfigDict:
  """Returns keys of `rollouts`, `agents` and `http`."""
  return create(
    rollouts=create(
      # Protocol of the servers: agentrl, of launch.serve_rollouts; openai
      # (vLLM) or sglang, of other projects' engines: docs/engine.md.
      protocol="agentrl",
      # Name of the model at other engines; "" is the first that they list.
      model="",
      # File whose first line is the servers' token, or env:NAME; "": no token.
      token_file="",
      need_seeds=True,  # require of other engines that a seed repeats an answer
      snapshots="",  # folder or bucket of weights; "" is snapshots of the run
      max_lag=2,  # updates that weights may be behind the learner's
      poll_interval_s=0.5,  # time between a server's polls for snapshots
      health_interval_s=1.0,  # time between health checks of a server
      server_timeout_s=20.0,  # silence after which a server is lost
      # Wait for an answer, retries on other servers included.
      answer_timeout_s=540.0,
      sync_timeout_s=600.0,  # wait for all servers to serve what is evaluated
      start_timeout_s=3600.0,  # a server's wait for its first weights
      grace_s=30.0,  # time for a server that must stop to finish its answers
    ),
    agents=create(
      host="127.0.0.1",  # address to listen at; 0.0.0.0: other machines, too
      token_file="",  # file whose first line is the agents' token; "": none
      idle_timeout_s=600.0,  # silence after which an agent counts as gone
      # Conversations of an episode, each of which is trained on as a line of
      # tokens: of several agents, or of one that rewrites its history. With 1,
      # a call that does not continue the last one is refused.
      max_lines=16,
      # Command that plays, which the run starts; {url} and {model} stand for
      # this server and the run's name. "": agents come by themselves.
      program="",
    ),
    http=create(  # of agents' calls and of rollout servers
      head_timeout_s=30.0,  # wait for a head; then the connection is closed
      body_timeout_s=60.0,  # wait for a body, after its head
      max_body=8 << 20,  # bytes of a body, decompressed
    ),
  )
