"""Episodes that external agents play over OpenAI's API."""
