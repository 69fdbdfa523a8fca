"""Language models: n-grams, Transformers, word lists and hotwords. This folder can be deleted."""
