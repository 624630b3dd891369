"""Methods of other systems, as arms: studies/siblings.md has their results."""
