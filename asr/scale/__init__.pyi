from .output_folder import (
    JOURNAL as JOURNAL,
    STATE as STATE,
    OutputFolder as OutputFolder,
    show_status as show_status,
)
from .ray_pool import PoolOptions as PoolOptions, RayPool as RayPool
