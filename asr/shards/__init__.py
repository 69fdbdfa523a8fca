"""Audio in tar shards with an index: pack a corpus, and train on it from a folder or any address."""
