from .ray_pool import PoolOptions as PoolOptions, RayPool as RayPool
from .work_units import (
    MAX_ITEMS as MAX_ITEMS,
    PartFolder as PartFolder,
    plan_units as plan_units,
    read_status as read_status,
)
