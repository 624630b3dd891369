"""Methods of other systems, as arms: docs/siblings.md has their results."""
