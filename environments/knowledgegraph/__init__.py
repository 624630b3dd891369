from environments.knowledgegraph.environment import KnowledgeGraph

__all__ = ["KnowledgeGraph"]
