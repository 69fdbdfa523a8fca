from .packing import (
    PackSettings as PackSettings,
    add_member as add_member,
    deal as deal,
    encode_flac as encode_flac,
    make_key as make_key,
    pack as pack,
    write_folder_index as write_folder_index,
)
from .shard_loader import ShardLoader as ShardLoader, ShardWindow as ShardWindow, WindowStart as WindowStart
from .shards import ShardFolder as ShardFolder, ShardInfo as ShardInfo, TarShard as TarShard
