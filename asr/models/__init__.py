"""Models: encoders, decoders, and `build_model`, which makes the one that a config describes."""
