"""Rules that normalise texts, English ones for scoring too, and tokenizers."""
