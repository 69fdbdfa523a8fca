"""Manifests of other toolkits: Kaldi, NeMo, tables, audiofolder, folders of recordings."""
