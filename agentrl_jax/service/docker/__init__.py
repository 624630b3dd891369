"""Docker: workers and sessions in containers, removed for certain."""
