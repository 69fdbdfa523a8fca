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
    clip_words as clip_words,
    join_words as join_words,
    make_segment as make_segment,
    measure_compression as measure_compression,
    merge_channels as merge_channels,
)
from .writers import (
    WRITERS as WRITERS,
    TranscriptStream as TranscriptStream,
    format_transcript as format_transcript,
)
