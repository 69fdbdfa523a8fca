from .encoding import EncodedFile as EncodedFile, Encoding as Encoding, encode_flac as encode_flac
from .foreign_shards import index_folder as index_folder
from .packing import (
    PackSettings as PackSettings,
    ShardPlan as ShardPlan,
    TarWriter as TarWriter,
    deal as deal,
    make_key as make_key,
    pack as pack,
    write_folder_index as write_folder_index,
    write_in_processes as write_in_processes,
)
from .shard_loader import ShardLoader as ShardLoader, WindowStart as WindowStart
from .shards import (
    ShardFolder as ShardFolder,
    ShardInfo as ShardInfo,
    ShardWindow as ShardWindow,
    TarShard as TarShard,
    hash_index as hash_index,
)
