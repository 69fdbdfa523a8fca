"""Texts with times, read and written: trn, stm, ctm, JSON, srt, vtt and others."""
