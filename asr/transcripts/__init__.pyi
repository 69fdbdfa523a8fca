from .readers import (
    Entry as Entry,
    TranscriptFile as TranscriptFile,
    read_stm as read_stm,
    read_transcripts as read_transcripts,
)
from .subtitles import (
    Cue as Cue,
    SubtitlesConfig as SubtitlesConfig,
    build_cues as build_cues,
    measure_width as measure_width,
)
from .transcript import (
    Segment as Segment,
    Transcript as Transcript,
    Word as Word,
    measure_compression as measure_compression,
)
from .writers import (
    WRITERS as WRITERS,
    TranscriptStream as TranscriptStream,
    format_transcript as format_transcript,
)
