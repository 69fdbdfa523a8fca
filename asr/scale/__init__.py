"""Many recordings: output folders that can be resumed, and units of work for the processes of Ray."""
