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
    WRITERS as WRITERS,
    Segment as Segment,
    Transcript as Transcript,
    TranscriptStream as TranscriptStream,
    Word as Word,
    clip_words as clip_words,
    format_transcript as format_transcript,
    join_words as join_words,
    make_segment as make_segment,
    measure_compression as measure_compression,
    merge_channels as merge_channels,
)
