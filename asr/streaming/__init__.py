"""Live transcription that encodes each frame once; the folder can be deleted."""
