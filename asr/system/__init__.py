"""A run's config, and checkpoints with tokenizer, front end and weights."""
