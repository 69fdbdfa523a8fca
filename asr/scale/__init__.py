"""Many recordings: folders of outputs that are resumed, and units of work on several processes of Ray."""
