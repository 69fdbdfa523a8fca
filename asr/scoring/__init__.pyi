from .alignments import (
    KINDS as KINDS,
    Operation as Operation,
    align as align,
    count_operations as count_operations,
    find_edits as find_edits,
    split_units as split_units,
)
from .alternatives import read_as_sclite as read_as_sclite
from .bleu import NUM_COUNTS as NUM_COUNTS, compute_bleu as compute_bleu, count_bleu as count_bleu
from .combination import combine as combine, combine_files as combine_files
from .confusion import (
    LabelScore as LabelScore,
    format_label_table as format_label_table,
    score_labels as score_labels,
)
from .counting import (
    count_character_errors as count_character_errors,
    count_word_errors as count_word_errors,
    score as score,
)
from .glm import Rule as Rule, parse_rule as parse_rule, read_mapping as read_mapping
from .intervals import (
    Interval as Interval,
    find_rate_interval as find_rate_interval,
    find_ratio_interval as find_ratio_interval,
    number_groups as number_groups,
    resample as resample,
    sum_groups as sum_groups,
)
from .matching import (
    Matched as Matched,
    compare_styles as compare_styles,
    describe_reference as describe_reference,
    find_ids as find_ids,
    match_transcripts as match_transcripts,
)
from .page import Report as Report, build_page as build_page, write_report as write_report
from .result import Counts as Counts, Score as Score, format_table as format_table, tabulate as tabulate
from .sclite_formats import (
    align_lines as align_lines,
    write_dtl as write_dtl,
    write_pra as write_pra,
    write_sgml as write_sgml,
)
from .scored_files import ScoredFile as ScoredFile, score_files as score_files
from .significance import (
    MIN_NORMAL as MIN_NORMAL,
    compare as compare,
    compute_matched_pairs as compute_matched_pairs,
    compute_mcnemar as compute_mcnemar,
    compute_sign_flip_p as compute_sign_flip_p,
    compute_signed_ranks as compute_signed_ranks,
    count_segment_errors as count_segment_errors,
)
from .speakers import assign_texts as assign_texts
from .tables import (
    html_table as html_table,
    markdown_table as markdown_table,
    percent as percent,
    show_interval as show_interval,
    text_table as text_table,
)
