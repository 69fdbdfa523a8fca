"""What other toolkits call ids, audio and texts: names of columns, in any case, by their meaning."""

from __future__ import annotations

COLUMNS = {
    "id": ("id", "utt_id", "utterance_id", "utt", "key", "segment_id"),
    "audio": (
        *("audio", "audio_filepath", "path", "audio_path", "audio_file", "file", "file_path", "filename"),
        *("file_name", "wav", "wav_path", "wav_filename"),
    ),
    "start": ("start", "offset"),
    "end": ("end", "stop"),
    "duration": ("duration", "seconds"),
    "milliseconds": ("duration_ms", "duration[ms]"),
    "text": ("text", "sentence", "transcript", "transcription", "wrd"),
    "speaker": ("speaker", "speaker_id", "spk_id", "client_id"),
    "language": ("language", "lang", "locale"),
}
MEANINGS = {name: meaning for meaning, names in COLUMNS.items() for name in names}


def describe_columns() -> str:
    """For messages and help: which names are understood."""
    return "; ".join(f"{meaning}: {', '.join(names)}" for meaning, names in COLUMNS.items())
