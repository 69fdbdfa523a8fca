"""Training: prepare data and model, update, validate, write checkpoints and resume exactly."""
