from environments.os_interaction.environment import OSInteraction

__all__ = ["OSInteraction"]
