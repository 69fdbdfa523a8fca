"""Who speaks when: models, training, diarization, and error rates of meetings."""
