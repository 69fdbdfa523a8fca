"""Training: prepare data and model, update, validate, write checkpoints, resume exactly."""
