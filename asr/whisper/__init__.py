"""Whisper: checkpoints of any form, model, tokenizer, search, word times and the recogniser."""

import asr.models  # noqa: F401 - it reads `sections` from here, which imports parts of it: it must begin
