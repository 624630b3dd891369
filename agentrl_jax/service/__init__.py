"""AgentRL's protocol: the controller service, workers, clients, containers."""
