"""The page of a controller for its operators."""
