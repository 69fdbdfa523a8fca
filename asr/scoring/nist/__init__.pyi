from .glm import (
    Rule as Rule,
    apply_mapping as apply_mapping,
    parse_rule as parse_rule,
    read_mapping as read_mapping,
)
from .sclite import find_cheapest_edits as find_cheapest_edits, read_as_sclite as read_as_sclite
