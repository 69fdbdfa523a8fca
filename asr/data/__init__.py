"""Manifests and what they are made from: Kaldi folders, tables, corpora, synthetic speech."""
