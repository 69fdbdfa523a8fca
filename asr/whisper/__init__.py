"""Whisper's checkpoints of any form, its tokenizer, search and word times."""
