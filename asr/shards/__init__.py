"""Audio in tar shards, with an index: pack, train from any address."""
