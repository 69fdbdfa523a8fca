"""Whisper's encoder and decoder, built from our Transformer layers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import UserError
from asr.models.decoders import (
    DecoderLayer,
    TransformerDecoder,
    TransformerDecoderConfig,
    TransformerDecoderState,
    Weights,
    WeightsOf,
)
from asr.models.encoders import Encoder, EncoderLayer, TransformerEncoderConfig
from asr.models.layers import Dropout, EncoderKV, as_bias, has_any, length_mask
from asr.models.precision import Int8Linear
from asr.models.speech_model import SpeechModel
from asr.whisper.sizes import FRAMES_PER_STEP, MAX_STEPS, WhisperSizes

# B batch, S samples, T frames or encoded steps, F features, U tokens, D dimension, V vocabulary

EXPANSION = 4  # width of the feed-forward blocks, relative to the model


class WhisperEncoder(Encoder):
    """Two convolutions over time, the second of which halves it, then layers of self-attention.

    Frames past an utterance's length have no effect. For the 30 seconds that Whisper was trained on, pad the
    audio with silence before computing features.
    """

    positions_TD: Tensor

    subsampling_factor = FRAMES_PER_STEP

    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        layer = TransformerEncoderConfig(
            dim=sizes.dim,
            num_heads=sizes.encoder_heads,
            feed_forward_dim=EXPANSION * sizes.dim,
            dropout=0.0,  # as in Whisper's training
            positions="none",
        )
        self.output_dim = sizes.dim
        self.convolution_1 = nn.Conv1d(sizes.num_mels, sizes.dim, 3, padding=1)
        self.convolution_2 = nn.Conv1d(sizes.dim, sizes.dim, 3, stride=FRAMES_PER_STEP, padding=1)
        self.register_buffer(
            "positions_TD", torch.zeros(sizes.max_steps, sizes.dim)
        )  # loaded with the weights
        self.dropout = Dropout(0.0)  # a CTC head uses its probability, too
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(sizes.encoder_layers))
        self.norm = nn.LayerNorm(sizes.dim)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        lengths_B = (feature_lengths_B + 1) // FRAMES_PER_STEP
        x_BTD = self._subsample(features_BTF, _mask_unless_full(feature_lengths_B, features_BTF.size(1)))
        if x_BTD.size(1) > len(self.positions_TD):
            raise UserError(
                f"{features_BTF.size(1)} frames of 10 ms at once, but this model accepts no more than "
                f"{FRAMES_PER_STEP * len(self.positions_TD)}; cut the recording into shorter pieces"
            )
        places_T = torch.arange(x_BTD.size(1), device=x_BTD.device)
        return self._attend(x_BTD, places_T, _mask_unless_full(lengths_B, x_BTD.size(1))), lengths_B

    def encode_with_silence(self, features_BTF: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        """Encode features that end in silence as if the silence continued to the last position.

        Only one in `stride` of the further silent steps is computed. Returns the computed steps (B, S, D) and
        the log of the number of steps that each represents (B, S), which attention adds to its scores.
        """
        num_steps = features_BTF.size(1) // FRAMES_PER_STEP
        # Repeat the last frames, because a convolution would see zeros at the end, which are not silence.
        features_BTF = torch.cat([features_BTF, features_BTF[:, -1:].expand(-1, FRAMES_PER_STEP, -1)], dim=1)
        x_BTD = self._subsample(features_BTF, None)[:, :num_steps]
        silent_S, counts_S = place_silence(num_steps, len(self.positions_TD), stride, x_BTD.device)
        places_S = torch.cat([torch.arange(num_steps, device=x_BTD.device), silent_S])
        x_BSD = x_BTD[:, places_S.clamp(max=num_steps - 1)]
        bias_BS = torch.cat([counts_S.new_ones(num_steps), counts_S]).log().expand(len(x_BSD), -1)
        return self._attend(x_BSD, places_S, bias_BS), bias_BS

    def _attend(self, x_BTD: Tensor, places_T: Tensor, mask_BT: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.positions_TD[places_T]
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT)
        return self.norm(x_BTD)

    def _subsample(self, features_BTF: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
        x_BDT = _zero_past(features_BTF.transpose(1, 2), frame_mask_BT)
        x_BDT = _zero_past(F.gelu(self.convolution_1(x_BDT)), frame_mask_BT)
        x_BDT = self.convolution_2(x_BDT.to(self.convolution_2.weight.dtype))
        # Contiguous, since later sums would otherwise read memory with large strides.
        return F.gelu(x_BDT).transpose(1, 2).contiguous()


class LearnedPositions(nn.Module):
    """Adds a learned position embedding to each token; `start` is the position of the first token."""

    def __init__(self, span: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(span, dim)

    def forward(self, x_BUD: Tensor, start: int = 0) -> Tensor:
        end = start + x_BUD.size(1)
        if end > len(self.table.weight):
            raise UserError(f"a text of {end} tokens, but this model has {len(self.table.weight)} positions")
        return x_BUD + self.table.weight[start:end].to(x_BUD.dtype)


class WhisperDecoder(TransformerDecoder):
    """Our decoder with unscaled embeddings, and an output without bias that is tied to them.

    In training, it has a prompt: the tokens between the start token and each text, which callers do not see.
    Without one, callers pass all tokens themselves.
    """

    def __init__(
        self, sizes: WhisperSizes, memory_dim: int, vocab_size: int, prompt: tuple[int, ...] = ()
    ) -> None:
        layers = TransformerDecoderConfig(
            dim=sizes.dim,
            num_layers=sizes.decoder_layers,
            num_heads=sizes.decoder_heads,
            feed_forward_dim=EXPANSION * sizes.dim,
            dropout=0.0,
        )
        super().__init__(layers, memory_dim, vocab_size)
        self.positions = LearnedPositions(sizes.max_tokens, sizes.dim)
        self.max_tokens = sizes.max_tokens - 1 - len(prompt)  # the start token has a position, too
        self.prompt = prompt
        self.is_prompted = False
        self.scale = 1.0
        self.output = nn.Linear(sizes.dim, vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        self.output.weight = self.embedding.weight

    def take_prompts(self) -> None:
        """Let the caller write prompts from now on; half of the positions are then for the text."""
        self.max_tokens += len(self.prompt)
        self.prompt = ()
        self.is_prompted = True

    def limit_tokens(self, encoded_lengths_B: Tensor, most_in_a_step: int) -> Tensor:
        if self.is_prompted:
            return torch.full_like(encoded_lengths_B, (self.max_tokens + 1) // 2)
        return super().limit_tokens(encoded_lengths_B, most_in_a_step)

    def start(
        self, encoded_BTD: Tensor, encoded_lengths_B: Tensor, bias_BT: Tensor | None = None
    ) -> TransformerDecoderState:
        """`bias_BT`, for windows with few silent steps, is added to all cross-attention scores."""
        mask_BT = _mask_unless_full(encoded_lengths_B, encoded_BTD.size(1))
        if bias_BT is None and mask_BT is not None:
            bias_BT = as_bias(mask_BT, encoded_BTD)
        parts, memories = encoded_BTD.split(count_rows(encoded_BTD, MAX_STEPS)), []
        for layer in cast(list[DecoderLayer], self.layers):
            own = [layer.cross_attention.precompute_kv(part_BTD, None) for part_BTD in parts]
            # Contiguous, because each decoding step reads them again, head by head.
            keys_BHSK = torch.cat([kv.keys_BHSK for kv in own])
            values_BHSK = torch.cat([kv.values_BHSK for kv in own])
            memories.append(EncoderKV(keys_BHSK, values_BHSK, bias_BT))
        return TransformerDecoderState(memories)

    def attend(
        self,
        tokens_BU: Tensor,
        state: TransformerDecoderState,
        weights_of: WeightsOf,
        skip: int = 0,
        bias_BUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        if not self.prompt or state.num_tokens:
            return super().attend(tokens_BU, state, weights_of, skip, bias_BUT)
        prompt_BP = tokens_BU.new_tensor(self.prompt).expand(len(tokens_BU), -1)
        tokens_BN = torch.cat([tokens_BU[:, :1], prompt_BP, tokens_BU[:, 1:]], dim=1)
        if bias_BUT is not None:  # the last token of the prompt predicts the first token of the text
            bias_BUT = nn.functional.pad(bias_BUT, (0, 0, len(self.prompt), 0))
        return super().attend(tokens_BN, state, weights_of, skip + len(self.prompt), bias_BUT)


def quantize(model: SpeechModel, dtype: torch.dtype) -> None:
    """Quantize linear layers to 8 bits for inference on a CPU; attention and convolution use `dtype`.

    With AMX, layers with many rows use bf16, because rounding their input takes longer than the product.

    The model may be in the half precision of its file: layers are rounded one by one, so that there is never
    a float32 copy of all of it. The result has its own memory, so the file need not stay mapped.
    """
    encoder, decoder = cast(WhisperEncoder, model.encoder), cast(WhisperDecoder, model.decoder)
    decoder.embedding = StoredEmbedding.from_pretrained(decoder.embedding.weight.detach())
    decoder.tie()
    # Without linear layers, because a list of them would keep all their weights alive.
    modules = [module for module in model.modules() if not isinstance(module, nn.Linear)]
    for module in modules:
        if not isinstance(module, StoredEmbedding):
            module._apply(lambda tensor: tensor.to(torch.float32, copy=True), recurse=False)
    encoder.convolution_2.to(dtype)
    of_decoder = set(decoder.modules())
    is_bf16_fast = dtype == torch.bfloat16 and has_any(["amx_bf16"])
    for module in modules:
        for name, linear in list(module.named_children()):
            if isinstance(linear, nn.Linear):
                few_rows = module in of_decoder and name != "project_memory"
                if is_bf16_fast and not few_rows:
                    setattr(module, name, Bf16Linear(linear))
                    continue
                is_attended = name in ("project_in", "project_queries", "project_memory")
                output_dtype = dtype if is_attended else torch.float32
                setattr(module, name, Int8Linear(linear.weight, linear.bias, output_dtype, few_rows))


class Bf16Linear(nn.Module):
    """A linear layer in bf16, regardless of its input's precision."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight_NK = linear.weight.detach().to(torch.bfloat16, copy=True)
        self.bias_N = linear.bias.detach().to(torch.bfloat16, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), self.weight_NK, self.bias_N)


class StoredEmbedding(nn.Embedding):
    """An embedding that returns float32, regardless of its table's precision."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).float()


def place_silence(first: int, past: int, stride: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return steps that represent those from `first` to `past`, and the number that each represents."""
    edges = torch.arange(first, past, stride, device=device)
    ends = (edges + stride).clamp(max=past)
    return (edges + ends - 1) // 2, (ends - edges).float()


def count_rows(batch_BTX: Tensor, longest: int) -> int:
    """Count the windows to compute at once: 30 seconds on a CPU, because more do not fit its cache."""
    is_on_cpu = batch_BTX.device.type == "cpu"
    return max(1, longest // max(1, batch_BTX.size(1)) if is_on_cpu else len(batch_BTX))


def _mask_unless_full(lengths_B: Tensor, length: int) -> Tensor | None:
    """Return the mask of steps; None if all are full, as in 30-second windows, which is faster."""
    if bool((lengths_B >= length).all()):
        return None
    return length_mask(lengths_B.clamp(min=1), length)


def _zero_past(x_BDT: Tensor, mask_BT: Tensor | None) -> Tensor:
    return x_BDT if mask_BT is None else x_BDT * mask_BT[:, None]
