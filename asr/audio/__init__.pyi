from .reading import (
    AudioError as AudioError,
    change_speed as change_speed,
    measure_seconds as measure_seconds,
    read as read,
    read_info as read_info,
    resample as resample,
    write as write,
)
from .segmentation import (
    SILENCE_DB as SILENCE_DB,
    AudioSegment as AudioSegment,
    Channels as Channels,
    Recording as Recording,
    SegmentationConfig as SegmentationConfig,
    Segmenter as Segmenter,
    find_runs as find_runs,
    make_recording as make_recording,
    make_samples as make_samples,
    measure_energies as measure_energies,
    read_ahead as read_ahead,
    read_recording as read_recording,
    split_channels as split_channels,
)
from .silero import SileroModel as SileroModel, load_silero as load_silero
from .speech_detection import SileroDetector as SileroDetector
