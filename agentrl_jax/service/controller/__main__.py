"""Runs `main` as a command."""

from agentrl_jax.service.controller.main import main

if __name__ == "__main__":
  main()
