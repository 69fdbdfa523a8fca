from .errors import AudioError as AudioError, UserError as UserError
from .scoring.counting import score as score
from .scoring.result import Score as Score
from .scoring.scored_files import compare as compare, score_files as score_files
from .scoring.significance import Comparison as Comparison
from .train.loop import Run as Run, train_model as train_model
from .transcription.model import Model as Model, load_model as load_model
from .transcripts.transcript import Segment as Segment, Transcript as Transcript, Word as Word

__version__: str
