"""A corpus to trained systems that are compared by their error rates."""
