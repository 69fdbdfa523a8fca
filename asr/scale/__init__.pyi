from .output_folder import JOURNAL as JOURNAL, STATE as STATE, OutputFolder as OutputFolder
from .ray_pool import PoolOptions as PoolOptions, RayPool as RayPool
