from .activity import PyanNet as PyanNet
from .diarize import Diarizer as Diarizer, load_diarizer as load_diarizer
from .embedding import CamPlusPlus as CamPlusPlus, CamPlusPlusSizes as CamPlusPlusSizes
from .meeting_scores import pair_speakers as pair_speakers, read_meeting as read_meeting
from .speaker_models import (
    SpeakerModels as SpeakerModels,
    is_speaker_model as is_speaker_model,
    load_speaker_models as load_speaker_models,
    write_speaker_models as write_speaker_models,
)
from .turn_scores import (
    TurnScore as TurnScore,
    compare_turns as compare_turns,
    report_turns as report_turns,
    score_turns as score_turns,
)
from .turns import (
    Turn as Turn,
    format_rttm as format_rttm,
    format_seglst as format_seglst,
    read_rttm as read_rttm,
    read_seglst as read_seglst,
    read_uem as read_uem,
)
