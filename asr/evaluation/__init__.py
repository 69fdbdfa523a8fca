"""Decode and score a data set; plot attention."""
