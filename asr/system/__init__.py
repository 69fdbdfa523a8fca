"""What a run is: its config, and a checkpoint with tokenizer, front end and weights."""
