"""Models of studies, which no shipped model needs: the folder can be deleted."""

from __future__ import annotations

from asr.research.classifiers import (
    FrameLabelsConfig,
    FrameLabelsModel,
    RecordingLabelConfig,
    RecordingLabelModel,
)
from asr.research.convolutional import ConvolutionalEncoder, ConvolutionalEncoderConfig
from asr.research.intra_attention import IntraAttentionEncoder, IntraAttentionEncoderConfig
from asr.research.multi_speaker import MultiSpeakerConfig, MultiSpeakerModel
from asr.research.non_autoregressive import (
    EndDecoder,
    EndDecoderConfig,
    LengthDecoder,
    LengthDecoderConfig,
    MaskDecoder,
    MaskDecoderConfig,
)
from asr.research.recurrent_decoder import (
    AttentionDecoder,
    AttentionDecoderConfig,
    IntraAttentionDecoderConfig,
    SingleSummaryDecoder,
    SingleSummaryDecoderConfig,
)

# From the section of a config to its class, as the tables of asr/models have it.
ENCODERS = {
    IntraAttentionEncoderConfig: IntraAttentionEncoder,
    ConvolutionalEncoderConfig: ConvolutionalEncoder,
}
DECODERS = {
    AttentionDecoderConfig: AttentionDecoder,
    IntraAttentionDecoderConfig: AttentionDecoder,
    SingleSummaryDecoderConfig: SingleSummaryDecoder,
    LengthDecoderConfig: LengthDecoder,
    EndDecoderConfig: EndDecoder,
    MaskDecoderConfig: MaskDecoder,
}
MODELS = {
    RecordingLabelConfig: RecordingLabelModel,
    FrameLabelsConfig: FrameLabelsModel,
    MultiSpeakerConfig: MultiSpeakerModel,
}
