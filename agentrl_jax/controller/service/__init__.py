"""AgentRL's controller as a service: workers register, clients play."""
