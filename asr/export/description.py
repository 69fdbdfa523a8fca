"""Description of an export, `export.json`: what a runtime has to know besides the graphs.

It is read without torch. Its fields are:

    format         1; a reader refuses any other number
    kind           ctc, transducer or attention
    sample_rate    of the audio, in Hz
    sample_scale   samples in [-1, 1] are multiplied by it first: 32768, or 1 as some types of sherpa-onnx do
    features       settings of the front end, as in section `features` of config.yaml. cmvn is done by the
                   graphs, so that a runtime computes the features as if it were none
    files          names of the graphs: encoder; decoder and joiner (transducer); step (attention)
    tokenizer      tokenizer.json, with which `asr.text.tokenizer.Tokenizer` turns tokens into words
    blank          ID of blank (CTC, transducer)
    start, end     IDs before the first and after the last token (transducer: start alone)
    first          first ID that may be part of a text; those below it are special tokens
    predictor      stateless or lstm (transducer)
    durations      steps that a token or blank moves on (TDT); empty for an RNN-T
    max_tokens     most tokens at one step (transducer), or for each step of the recording (attention)
    subsampling    frames of one encoded step
    streaming      null for whole recordings. Otherwise an object with the `frames` of a chunk, `takes_lengths`
                   (whether the encoder has the input x_lens), `left` (steps before a chunk that it attends to),
                   and `caches`, a list of inputs: {input, output, shape, type}. A cache is zeros at first, and
                   then the output of the chunk before; one whose `output` is null stays zeros
    language       of the texts; null if it is unknown
    text_rules     rules that normalized the texts of the training, as in `text.training`

Graphs; N utterances, T frames, F features, U steps, V vocabulary, J joint network, L layers, H heads:

    encoder   x (N, T, F) and x_lens (N), int64, to one of
                  log_probs (N, U, V), log_probs_lens (N)                       ctc
                  encoder_out (N, U, J), encoder_out_lens (N)                   transducer
                  cross (L, 2, N, H, U, K), encoder_out_lens (N)                attention
              and, chunk by chunk, also from caches to caches. A chunk has `frames` frames; only the last one may
              have fewer, if the encoder takes x_lens, and is padded by zeros
    decoder   stateless: y (N, 2), int64, to decoder_out (N, J); a text begins with two times `start`
              lstm: y (N, 1), hidden and cell (N, L, J), zeros at first, to decoder_out, next_hidden, next_cell
    joiner    encoder_out (N, J) and decoder_out (N, J) to logit (N, V and the number of durations)
    step      y (N, 1), cross, encoder_out_lens and past (L, 2, N, H, P, K), where P is the number of tokens
              before y, to logits (N, V) and next_past

Inputs and outputs have this order; their names may differ where a type of sherpa-onnx has its own.
"""

from __future__ import annotations
