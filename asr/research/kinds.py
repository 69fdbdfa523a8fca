"""Tables of the experimental models, which no bundled model uses, so this folder can be deleted."""

from __future__ import annotations

from asr.research import (
    classifiers,
    intra_attention,
    multi_speaker,
    non_autoregressive,
    non_autoregressive_search,
    recurrent_decoder,
)

# Maps config classes to model classes, like the tables in asr/models.
ENCODERS = {intra_attention.IntraAttentionEncoderConfig: intra_attention.IntraAttentionEncoder}
DECODERS = {
    recurrent_decoder.AttentionDecoderConfig: recurrent_decoder.AttentionDecoder,
    recurrent_decoder.IntraAttentionDecoderConfig: recurrent_decoder.AttentionDecoder,
    recurrent_decoder.SingleSummaryDecoderConfig: recurrent_decoder.SingleSummaryDecoder,
    non_autoregressive.LengthDecoderConfig: non_autoregressive.LengthDecoder,
    non_autoregressive.MaskDecoderConfig: non_autoregressive.MaskDecoder,
}
METHODS = {"parallel": non_autoregressive_search.METHOD}
MODELS = {
    classifiers.RecordingLabelConfig: classifiers.RecordingLabelModel,
    classifiers.FrameLabelsConfig: classifiers.FrameLabelsModel,
    multi_speaker.MultiSpeakerConfig: multi_speaker.MultiSpeakerModel,
}
