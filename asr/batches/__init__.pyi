from .augment import (
    NOTHING_APPLIED as NOTHING_APPLIED,
    Applied as Applied,
    AugmentConfig as AugmentConfig,
    Augmenter as Augmenter,
    Masked as Masked,
    NoiseConfig as NoiseConfig,
    SpecAugment as SpecAugment,
    SpecAugmentConfig as SpecAugmentConfig,
    build_mask as build_mask,
    draw_masks as draw_masks,
    warp_time as warp_time,
)
from .builder import (
    Batch as Batch,
    BatchBuilder as BatchBuilder,
    Inputs as Inputs,
    encode_text as encode_text,
    needed_frames as needed_frames,
)
from .loader import BatchLoader as BatchLoader, TextLoader as TextLoader, count_allowed as count_allowed
from .order import (
    BatchConfig as BatchConfig,
    ProcessShare as ProcessShare,
    choose as choose,
    group_by_length as group_by_length,
    hash_names as hash_names,
    order_shards as order_shards,
    padding_share as padding_share,
    plan_epoch as plan_epoch,
    random_stream as random_stream,
)
