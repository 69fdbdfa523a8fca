from .errors import AudioError as AudioError, UserError as UserError
from .scoring.counting import score as score
from .train.loop import train_model as train_model
from .transcription.transcribe import load_model as load_model
from .transcripts.transcript import Segment as Segment, Transcript as Transcript, Word as Word

__version__: str
