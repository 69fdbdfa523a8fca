from .augment import (
    Augmenter as Augmenter,
    apply_spec_augment as apply_spec_augment,
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
from .loader import (
    BatchLoader as BatchLoader,
    TextLoader as TextLoader,
    translate_worker_errors as translate_worker_errors,
)
from .order import (
    ProcessShare as ProcessShare,
    choose as choose,
    group_by_length as group_by_length,
    hash_names as hash_names,
    order_shards as order_shards,
    plan_epoch as plan_epoch,
    random_stream as random_stream,
)
