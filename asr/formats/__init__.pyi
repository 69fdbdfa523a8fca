from .foreign_manifests import guess_source_kind as guess_source_kind, read_utterances as read_utterances
from .kaldi_folder import parse_pipe as parse_pipe, read_kaldi as read_kaldi
