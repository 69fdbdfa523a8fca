"""Greedy and beam search, CTC, n-grams, lexica, shallow fusion. Ids out, never text."""
