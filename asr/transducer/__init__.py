"""Transducers: decoders that read encoded steps from left to right and emit any number of tokens at each."""
