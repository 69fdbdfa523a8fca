from .archives import download as download, extract as extract
from .corpora import (
    beamform_files as beamform_files,
    build_read as build_read,
    build_whole as build_whole,
    check_counts as check_counts,
    compute_fingerprint as compute_fingerprint,
    delay_and_sum as delay_and_sum,
    find_corpus as find_corpus,
    find_delays as find_delays,
    find_files as find_files,
    find_folder as find_folder,
    index_wsj as index_wsj,
    limit_repeats as limit_repeats,
    normalize_prompt as normalize_prompt,
    read_dots as read_dots,
    read_prompts as read_prompts,
    require_count as require_count,
    require_fingerprint as require_fingerprint,
    require_unpacked as require_unpacked,
    unpack_inner as unpack_inner,
    warn_of_shortfall as warn_of_shortfall,
    widen as widen,
    write_beamformed as write_beamformed,
)
from .definition import (
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
    Decoded as Decoded,
    build_resources as build_resources,
    choose_requests as choose_requests,
    choose_setup as choose_setup,
    decode as decode,
    describe_machine as describe_machine,
    estimate_arpa as estimate_arpa,
)
from .experiment import (
    Experiment as Experiment,
    build_runs as build_runs,
    find_runs as find_runs,
    load_conf as load_conf,
)
from .report import (
    SMOKE_WARNING as SMOKE_WARNING,
    TABLE as TABLE,
    describe_experiment as describe_experiment,
    list_warnings as list_warnings,
    tabulate_comparisons as tabulate_comparisons,
)
from .scores import (
    Texts as Texts,
    describe_score as describe_score,
    pool as pool,
    read_table as read_table,
    round_figures as round_figures,
    score_runs as score_runs,
    score_texts as score_texts,
    setup_name as setup_name,
    write_table as write_table,
)
from .speech_synthesis import (
    ACCENTS as ACCENTS,
    SAMPLE_RATE as SAMPLE_RATE,
    VARIANTS as VARIANTS,
    EspeakVoices as EspeakVoices,
    add_noise as add_noise,
    add_room as add_room,
    pronounce as pronounce,
    speak_split as speak_split,
    synthesize as synthesize,
)
from .splits import cut_manifests as cut_manifests, find_shared as find_shared
from .stages import find_reason_to_train as find_reason_to_train, run_recipe as run_recipe
from .steps import read_record as read_record
from .studies import build_folds as build_folds, load_variants as load_variants
