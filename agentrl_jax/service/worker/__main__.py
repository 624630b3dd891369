"""Runs a worker as a command; see `main`."""

from agentrl_jax.service.worker.main import main

if __name__ == "__main__":
  main()
