"""Rules that normalize texts, English ones for scoring too, and tokenizers."""
