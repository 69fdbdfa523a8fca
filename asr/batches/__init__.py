"""Utterances to padded batches: augmentation, order, loading, exact resume."""
