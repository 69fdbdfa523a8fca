from .alignments import (
    KINDS as KINDS,
    Operation as Operation,
    align as align,
    count_operations as count_operations,
    find_edits as find_edits,
    split_units as split_units,
)
from .counting import (
    count_character_errors as count_character_errors,
    count_word_errors as count_word_errors,
    score as score,
)
from .intervals import (
    Interval as Interval,
    find_rate_interval as find_rate_interval,
    find_ratio_interval as find_ratio_interval,
    number_groups as number_groups,
    resample as resample,
    sum_groups as sum_groups,
)
from .page import Report as Report, build_page as build_page, write_report as write_report
from .result import (
    Counts as Counts,
    Score as Score,
    align_lines as align_lines,
    format_table as format_table,
    markdown_table as markdown_table,
    percent as percent,
    show_interval as show_interval,
    tabulate as tabulate,
    text_table as text_table,
)
from .scored_files import (
    ScoredFile as ScoredFile,
    compare as compare,
    describe_reference as describe_reference,
    find_ids as find_ids,
    match_transcripts as match_transcripts,
    score_files as score_files,
    score_systems as score_systems,
)
from .significance import (
    MIN_NORMAL as MIN_NORMAL,
    compare_scores as compare_scores,
    compute_matched_pairs as compute_matched_pairs,
    compute_sign_flip_p as compute_sign_flip_p,
    count_segment_errors as count_segment_errors,
)
