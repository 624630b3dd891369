"""AgentRL's worker protocol: its messages, and the client that sends them."""
