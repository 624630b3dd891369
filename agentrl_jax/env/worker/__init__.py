"""A worker: serves one environment to controllers and remote sessions."""
