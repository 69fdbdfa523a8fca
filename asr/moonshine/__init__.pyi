from .encoder_decoder import DECODERS as DECODERS, ENCODERS as ENCODERS
from .family import (
    MoonshineDecodingConfig as MoonshineDecodingConfig,
    config_class as config_class,
    decoding as decoding,
    languages as languages,
    matches as matches,
    model_names as model_names,
    name as name,
    prefers_int8 as prefers_int8,
    section as section,
)
from .graphs import write_graphs as write_graphs
from .installed import find_default as find_default
from .loading import (
    convert as convert,
    describe as describe,
    find_files as find_files,
    find_weights as find_weights,
    load as load,
    load_source as load_source,
)
from .sizes import check_run as check_run
from .tokens import TokenizerUnits as TokenizerUnits
