from .adaptation import (
    LowRankLinear as LowRankLinear,
    is_low_rank as is_low_rank,
    merge_low_rank as merge_low_rank,
)
from .attention import (
    CrossAttention as CrossAttention,
    KeyValueCache as KeyValueCache,
    SelfAttention as SelfAttention,
    Window as Window,
    attend as attend,
    attention_weights as attention_weights,
    merge_heads as merge_heads,
    split_heads as split_heads,
)
from .attention_clock import ClockedDecoder as ClockedDecoder
from .attention_guide import (
    ELSEWHERE as ELSEWHERE,
    AttentionGuide as AttentionGuide,
    AttentionGuideConfig as AttentionGuideConfig,
    follow_texts as follow_texts,
    guide_texts as guide_texts,
)
from .build import AnyModelConfig as AnyModelConfig, build_model as build_model
from .conformer import (
    ConformerEncoder as ConformerEncoder,
    ConformerEncoderConfig as ConformerEncoderConfig,
    ConformerLayer as ConformerLayer,
    DepthwiseConvolution as DepthwiseConvolution,
)
from .convolutional import (
    ConvolutionalEncoder as ConvolutionalEncoder,
    ConvolutionalEncoderConfig as ConvolutionalEncoderConfig,
)
from .ctc_prefix import CTCPrefixes as CTCPrefixes, mask_padding as mask_padding
from .decoder import (
    Decoder as Decoder,
    ExposureConfig as ExposureConfig,
    TeacherForcing as TeacherForcing,
    corrupt as corrupt,
    token_similarity as token_similarity,
)
from .decoders import build_decoder as build_decoder
from .encoder import (
    Clock as Clock,
    Encoder as Encoder,
    EncoderConfig as EncoderConfig,
    Subsampling as Subsampling,
    SubsamplingConfig as SubsamplingConfig,
    make_clock as make_clock,
    subsampled_lengths as subsampled_lengths,
)
from .encoders import ENCODERS as ENCODERS, build_encoder as build_encoder
from .intra_attention import (
    IntraAttention as IntraAttention,
    IntraAttentionCell as IntraAttentionCell,
    IntraAttentionEncoder as IntraAttentionEncoder,
    IntraAttentionEncoderConfig as IntraAttentionEncoderConfig,
    Tape as Tape,
)
from .label_model import (
    FIRST_LABEL_ID as FIRST_LABEL_ID,
    FrameLabelsConfig as FrameLabelsConfig,
    FrameLabelsModel as FrameLabelsModel,
    LabelModel as LabelModel,
    RecordingLabelConfig as RecordingLabelConfig,
    RecordingLabelModel as RecordingLabelModel,
)
from .language_model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from .layers import (
    Activation as Activation,
    Dropout as Dropout,
    FeedForward as FeedForward,
    drop_out as drop_out,
    length_mask as length_mask,
)
from .losses import (
    IGNORED as IGNORED,
    MIN_DEVIATION as MIN_DEVIATION,
    AttentionPriorConfig as AttentionPriorConfig,
    GuidedAttentionConfig as GuidedAttentionConfig,
    align_tokens as align_tokens,
    attention_measures as attention_measures,
    cross_entropy as cross_entropy,
    ctc_loss as ctc_loss,
    diagonal_times as diagonal_times,
    guided_attention_loss as guided_attention_loss,
    prior_bias as prior_bias,
)
from .lstm import (
    Bidirectional as Bidirectional,
    LSTMEncoder as LSTMEncoder,
    LSTMEncoderConfig as LSTMEncoderConfig,
)
from .model import Model as Model, ModelConfig as ModelConfig, Targets as Targets
from .multi_speaker import (
    MultiSpeakerConfig as MultiSpeakerConfig,
    MultiSpeakerModel as MultiSpeakerModel,
    split_texts as split_texts,
)
from .non_autoregressive import (
    EndDecoder as EndDecoder,
    LengthDecoder as LengthDecoder,
    LengthPredictor as LengthPredictor,
    MaskDecoder as MaskDecoder,
    NonAutoregressiveDecoder as NonAutoregressiveDecoder,
    NonAutoregressiveDecoderConfig as NonAutoregressiveDecoderConfig,
    draw_gaps as draw_gaps,
)
from .positions import (
    PositionConfig as PositionConfig,
    Positions as Positions,
    Rotary as Rotary,
    fourier_codes as fourier_codes,
    sinusoid_codes as sinusoid_codes,
)
from .precision import (
    Int8Linear as Int8Linear,
    is_fast as is_fast,
    is_int8_exact as is_int8_exact,
    resolve_precision as resolve_precision,
)
from .recurrent_decoder import (
    RecurrentAttention as RecurrentAttention,
    RecurrentAttentionConfig as RecurrentAttentionConfig,
)
from .speech_model import (
    CTC as CTC,
    REPORTED as REPORTED,
    SpeechModel as SpeechModel,
    SpeechModelConfig as SpeechModelConfig,
)
from .transformer import (
    DecoderLayer as DecoderLayer,
    EncoderLayer as EncoderLayer,
    TransformerDecoder as TransformerDecoder,
    TransformerDecoderConfig as TransformerDecoderConfig,
    TransformerEncoder as TransformerEncoder,
    TransformerEncoderConfig as TransformerEncoderConfig,
)
