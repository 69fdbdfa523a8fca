from .turns import (
    Turn as Turn,
    format_rttm as format_rttm,
    format_seglst as format_seglst,
    format_uem as format_uem,
    read_rttm as read_rttm,
    read_seglst as read_seglst,
    read_uem as read_uem,
)
