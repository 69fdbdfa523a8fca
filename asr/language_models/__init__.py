"""Language models: n-grams, Transformers, lexica and hotwords. The folder can be deleted."""
