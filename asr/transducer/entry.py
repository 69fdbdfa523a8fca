"""Tables in which the core finds the decoder of transducers, and its decoding method, greedy or by a beam."""

from __future__ import annotations

from asr.decoding.decode import DecodingMethod
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, FusionModel, NBest
from asr.errors import UserError
from asr.models.layers import length_mask
from asr.transducer.label_looping import GreedySearch
from asr.transducer.step_beam import TransducerBeam
from asr.transducer.transducer_decoder import TransducerDecoder, TransducerDecoderConfig


def decode(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    decoder, lengths_B = encoded.model.decoder, encoded.lengths_B
    assert isinstance(decoder, TransducerDecoder)
    steps_BTD = decoder.prepare_steps(encoded.encoded_BTD)
    if language_model is not None and decoder.durations:
        raise UserError("a transducer with durations has no use for a language model; decode by ctc_beam")
    if decoder.durations or (config.beam == 1 and language_model is None):
        search = GreedySearch(decoder, len(lengths_B), lengths_B.device)
        search.read(steps_BTD, lengths_B)
        texts, _ = search.finish()
        return [[text] for text in texts]
    beam = TransducerBeam(decoder, config, language_model, len(lengths_B), lengths_B.device)
    is_step_BT = length_mask(lengths_B, steps_BTD.size(1))
    for steps_BD, is_step_B in zip(steps_BTD.unbind(1), is_step_BT.unbind(1), strict=True):
        beam.read(steps_BD, is_step_B)
    return beam.finish()


DECODERS = {TransducerDecoderConfig: TransducerDecoder}
METHODS = {"transducer": DecodingMethod(decode, decoders=("transducer",))}
