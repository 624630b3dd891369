"""Worker: serves one environment to controllers and remote sessions."""
