"""Whisper: checkpoints of any form, model, tokenizer, search, word times and the recogniser."""

import asr.models  # noqa: F401 - the unions of its configs still take Whisper's: they come first
