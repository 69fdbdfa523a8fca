from .archives import download as download, extract as extract
from .beamforming import (
    beamform_files as beamform_files,
    delay_and_sum as delay_and_sum,
    find_delays as find_delays,
)
from .corpora import (
    build_read as build_read,
    build_whole as build_whole,
    check_counts as check_counts,
    compute_fingerprint as compute_fingerprint,
    find_corpus as find_corpus,
    find_files as find_files,
    find_folder as find_folder,
    limit_repeats as limit_repeats,
    note_shortfall as note_shortfall,
    note_shortfalls as note_shortfalls,
    require_count as require_count,
    require_fingerprint as require_fingerprint,
    require_unpacked as require_unpacked,
    unpack_inner as unpack_inner,
    widen as widen,
    write_beamformed as write_beamformed,
)
from .definition import (
    STAGES as STAGES,
    WITHOUT_TAGS as WITHOUT_TAGS,
    Recipe as Recipe,
    Studies as Studies,
    Study as Study,
    SystemConf as SystemConf,
    find_recipes as find_recipes,
    load_recipe as load_recipe,
    load_study as load_study,
    share_systems as share_systems,
)
from .evaluation import (
    WEIGHTS as WEIGHTS,
    Split as Split,
    find_best as find_best,
    load_recognizer as load_recognizer,
)
from .experiment import (
    Experiment as Experiment,
    hash_file as hash_file,
    read_record as read_record,
    write_record as write_record,
)
from .figures import draw_curves as draw_curves, read_validations as read_validations
from .learning import (
    beam_suffix as beam_suffix,
    choose_method as choose_method,
    find_rates as find_rates,
    reread as reread,
    score_lengths as score_lengths,
)
from .report import (
    SMOKE_WARNING as SMOKE_WARNING,
    describe_experiment as describe_experiment,
    format_page as format_page,
    list_warnings as list_warnings,
    publish as publish,
    tabulate_comparisons as tabulate_comparisons,
)
from .results import (
    TABLE as TABLE,
    Texts as Texts,
    describe_score as describe_score,
    find_language_model as find_language_model,
    pool as pool,
    read_table as read_table,
    read_texts as read_texts,
    score_runs as score_runs,
    score_texts as score_texts,
    write_table as write_table,
    write_texts as write_texts,
)
from .speech_synthesis import (
    ACCENTS as ACCENTS,
    SAMPLE_RATE as SAMPLE_RATE,
    VARIANTS as VARIANTS,
    EspeakVoices as EspeakVoices,
    list_voices as list_voices,
    pronounce as pronounce,
    speak_split as speak_split,
    synthesize as synthesize,
)
from .splits import find_shared as find_shared
from .stages import build_tasks as build_tasks, explain_plan as explain_plan, run_recipe as run_recipe
from .study import (
    NUM_TOKENS as NUM_TOKENS,
    build_cases as build_cases,
    count_parameters as count_parameters,
    find_speakers as find_speakers,
    load_variants as load_variants,
    run_study as run_study,
)
from .systems import (
    build_runs as build_runs,
    cut_manifests as cut_manifests,
    find_all_runs as find_all_runs,
    find_runs as find_runs,
    load_conf as load_conf,
)
from .tedlium import prepare_talks as prepare_talks
from .wsj import (
    index_wsj as index_wsj,
    normalize_prompt as normalize_prompt,
    read_dots as read_dots,
    read_prompts as read_prompts,
    read_wsj as read_wsj,
)
