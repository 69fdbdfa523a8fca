"""Greedy and beam search, CTC, checks, and the times of words."""
