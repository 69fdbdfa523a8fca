"""Transcribe recordings of any length, with times of segments and words."""
