"""Speech recognition: run dataset recipes, transcribe audio files, score WER."""

__version__ = "0.1.0"
