from .columns import COLUMNS as COLUMNS, SOURCES as SOURCES
from .manifest import (
    Manifest as Manifest,
    Utterance as Utterance,
    build_utterance as build_utterance,
    parse_utterance as parse_utterance,
    read_manifest as read_manifest,
    relative_audio as relative_audio,
    write_manifest as write_manifest,
)
from .manifest_checks import (
    compute_statistics as compute_statistics,
    count_records as count_records,
    validate as validate,
)
from .manifest_readers import is_shards as is_shards, read_data as read_data
from .sentences import read_sentences as read_sentences
from .storage import (
    ByteRange as ByteRange,
    read_range as read_range,
    read_ranges as read_ranges,
    read_start as read_start,
)
from .subsets import (
    REST as REST,
    assign_units as assign_units,
    choose_unit as choose_unit,
    name_speakers as name_speakers,
    parse_share as parse_share,
    split_manifest as split_manifest,
)
from .text_lines import (
    open_lines as open_lines,
    read_decoded as read_decoded,
    read_lines as read_lines,
    read_texts as read_texts,
)
from .utterance_audio import PackedUtterance as PackedUtterance, fetch as fetch, read_audio as read_audio
