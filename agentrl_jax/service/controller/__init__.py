"""AgentRL's controller protocol: workers register, clients play."""
