"""Recordings of any length to text with times, from files or live."""
