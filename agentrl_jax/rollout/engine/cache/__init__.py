"""Keys and values of a policy slot: rows of slots, or a pool of pages."""
