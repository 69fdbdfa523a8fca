from .classification import (
    Classification as Classification,
    LabelScore as LabelScore,
    ReadSplit as ReadSplit,
    format_label_table as format_label_table,
    score_labels as score_labels,
)
from .classifiers import (
    FIRST_LABEL_ID as FIRST_LABEL_ID,
    FrameLabelsConfig as FrameLabelsConfig,
    FrameLabelsModel as FrameLabelsModel,
    LabelModel as LabelModel,
    RecordingLabelConfig as RecordingLabelConfig,
    RecordingLabelModel as RecordingLabelModel,
)
from .intra_attention import (
    IntraAttention as IntraAttention,
    IntraAttentionCell as IntraAttentionCell,
    IntraAttentionEncoder as IntraAttentionEncoder,
    IntraAttentionEncoderConfig as IntraAttentionEncoderConfig,
    IntraAttentionState as IntraAttentionState,
)
from .labels import (
    SILENCE as SILENCE,
    FrameLabels as FrameLabels,
    RecordingLabels as RecordingLabels,
    encode_labels as encode_labels,
    read_spans as read_spans,
)
from .monotonic_window import PositionTrackingDecoder as PositionTrackingDecoder
from .multi_speaker import (
    MultiSpeakerConfig as MultiSpeakerConfig,
    MultiSpeakerModel as MultiSpeakerModel,
    split_texts as split_texts,
)
from .non_autoregressive import (
    LengthDecoder as LengthDecoder,
    LengthPredictor as LengthPredictor,
    MaskDecoder as MaskDecoder,
    NonAutoregressiveDecoder as NonAutoregressiveDecoder,
    NonAutoregressiveDecoderConfig as NonAutoregressiveDecoderConfig,
    draw_gaps as draw_gaps,
)
from .recurrent_decoder import (
    RecurrentAttention as RecurrentAttention,
    RecurrentAttentionConfig as RecurrentAttentionConfig,
)
