"""Runs `main` as a command."""

from agentrl_jax.controller.service.main import main

if __name__ == "__main__":
  main()
