"""A run: its config, and a checkpoint with tokenizer, front end and weights."""
