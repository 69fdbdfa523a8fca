from .archives import download as download, extract as extract
from .corpora import (
    beamform_files as beamform_files,
    build_read as build_read,
    build_whole as build_whole,
    check_counts as check_counts,
    find_corpus as find_corpus,
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
    Study as Study,
    SystemConf as SystemConf,
    find_recipes as find_recipes,
    load_recipe as load_recipe,
    load_study as load_study,
    share_systems as share_systems,
)
from .evaluation import describe_machine as describe_machine
from .experiment import Experiment as Experiment
from .scores import round_figures as round_figures
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
from .stages import run_recipe as run_recipe
