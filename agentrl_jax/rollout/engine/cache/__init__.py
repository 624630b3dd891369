"""Keys and values of a policy slot: a pool of pages."""
