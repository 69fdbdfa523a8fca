"""Recurrent decoders compared with the equations of their papers in float64 and with PyTorch; beams."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from model_examples import NUM_SPECIAL, VOCAB_SIZE
from torch import nn

from asr.models.decoders import Decoder, build_decoder
from asr.models.speech_model import SpeechModelConfig
from asr.research import recurrent_decoder

# B utterances, R rows, T encoded steps, E their dimension, U tokens, V vocabulary

Array = np.ndarray
MEMORY_DIM = 10
LENGTHS = [9, 5, 1]
SCORES = ("additive", "dot")
DECODERS: dict[str, dict[str, Any]] = {
    "lstm": {"type": "attention", "attention": {}},
    "dot": {"type": "attention", "num_layers": 2, "attention": {"score": "dot"}},
    "location": {"type": "attention", "attention": {"location": 3}},
    "intra_attention": {"type": "intra_attention", "attention": {}},
    "intra_attention_deep": {"type": "intra_attention", "num_layers": 2},
    "single_summary": {"type": "single_summary"},
    "single_summary_deep": {"type": "single_summary", "num_layers": 3},
}
every_decoder = pytest.mark.parametrize("name", DECODERS)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_decoder, "ATTENTION_DIM", 6)
    monkeypatch.setattr(recurrent_decoder, "LOCATION_CHANNELS", 2)


def build(tree: dict[str, Any]) -> Decoder:
    """A decoder in float64, with weights large enough for selective attention."""
    torch.manual_seed(0)
    model = {"encoder": {"type": "lstm"}, "decoder": {"dim": 8} | tree}
    config = SpeechModelConfig.model_validate_json(json.dumps(model)).decoder
    assert config is not None
    decoder = build_decoder(config, MEMORY_DIM, VOCAB_SIZE).double().eval()
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.7)
    return decoder


def example(num_tokens: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, encoded steps with garbage in the padding, and lengths."""
    torch.manual_seed(1)
    tokens_BU = torch.randint(NUM_SPECIAL, VOCAB_SIZE, (len(LENGTHS), num_tokens))
    encoded_BTE = torch.randn(len(LENGTHS), max(LENGTHS), MEMORY_DIM, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        encoded_BTE[row, length:] = 30.0
    return tokens_BU, encoded_BTE, torch.tensor(LENGTHS)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(scores: list[float]) -> Array:
    shares = np.exp(np.array(scores) - max(scores))
    return shares / shares.sum()


def linear(weights: dict[str, Array], name: str, x: Array) -> Array:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


def run_cell(w: dict[str, Array], name: str, x: Array, state: list[Array]) -> list[Array]:
    """Hochreiter and Schmidhuber 1997 with the forget gate of Gers."""
    from_x = w[f"{name}.weight_ih"] @ x + w[f"{name}.bias_ih"]
    from_h = w[f"{name}.weight_hh"] @ state[0] + w[f"{name}.bias_hh"]
    into, kept, new, out = np.split(from_x + from_h, 4)
    cell = sigmoid(kept) * state[1] + sigmoid(into) * np.tanh(new)
    return [sigmoid(out) * np.tanh(cell), cell]


def run_lstmn(w: dict[str, Array], name: str, x: Array, past: list[tuple[Array, Array]], s: Array) -> Any:
    """Cheng et al. 2016: the new state, and the summary of the hidden states. `s` is the summary before."""
    dim = len(s)
    read, of_summary = linear(w, f"{name}.input", x), w[f"{name}.summary.weight"]
    hidden = cell = np.zeros(dim)
    if past:
        query = read[:dim] + of_summary[:dim] @ s
        scores = [
            linear(w, f"{name}.energy", np.tanh(linear(w, f"{name}.key", h) + query))[0] for h, _ in past
        ]
        shares = softmax(scores)
        hidden = sum(share * h for share, (h, _) in zip(shares, past, strict=True))
        cell = sum(share * c for share, (_, c) in zip(shares, past, strict=True))
    into, kept, out, new = np.split(read[dim:] + of_summary[dim:] @ hidden, 4)
    cell = sigmoid(kept) * cell + sigmoid(into) * np.tanh(new)
    return (sigmoid(out) * np.tanh(cell), cell), hidden


def energy(w: dict[str, Array], score: str, query: Array, key: Array) -> float:
    if score == "additive":
        return float(linear(w, "attention.energy", np.tanh(query + key))[0])
    return float(query @ key)


def attend(w: dict[str, Array], score: str, state: Array, encoded_TE: Array, last_T: Array) -> Any:
    """Bahdanau et al. 2015, and the convolution of Chorowski et al. 2015: f_i = F * alpha_{i-1}."""
    query = linear(w, "attention.project_query", state)
    energies = []
    for step, encoded in enumerate(encoded_TE):
        key = linear(w, "attention.project_keys", encoded)
        if "attention.location.weight" in w:
            filters = w["attention.location.weight"][:, 0]
            reach = filters.shape[1] // 2
            located = [
                sum(
                    own[offset + reach] * last_T[step + offset]
                    for offset in range(-reach, reach + 1)
                    if 0 <= step + offset < len(last_T)
                )
                for own in filters
            ]
            key = key + linear(w, "attention.project_location", np.array(located))
        energies.append(energy(w, score, query, key))
    weights_T = softmax(energies)
    return weights_T @ encoded_TE, weights_T


def follow_papers(tree: dict[str, Any], decoder: Decoder, tokens: list[int], encoded_TE: Array) -> Any:
    """Scores and weights of one utterance, computed token by token and step by step."""
    w = {name: parameter.detach().numpy() for name, parameter in decoder.named_parameters()}
    depth, dim = tree.get("num_layers", 1), 8
    score = tree.get("attention", {}).get("score", "additive")
    states = [[np.zeros(dim), np.zeros(dim)] for _ in range(depth)]
    tapes: list[list[tuple[Array, Array]]] = [[] for _ in range(depth)]
    summaries = [np.zeros(dim) for _ in range(depth)]
    weights_T = np.eye(len(encoded_TE))[0]
    top, context = np.zeros(dim), np.zeros(dim)
    if tree["type"] == "single_summary":
        context = np.tanh(linear(w, "summarize", np.concatenate([encoded_TE[0], encoded_TE[-1]])))
        begins = np.split(np.tanh(linear(w, "begin", context)), depth)
        states = [[begin, np.zeros(dim)] for begin in begins]
    all_scores, all_weights = [], []
    for token in tokens:
        embedded = w["embedding.weight"][token]
        if tree["type"] != "single_summary":
            context, weights_T = attend(w, score, top, encoded_TE, weights_T)
        x = np.concatenate([embedded, context])
        for layer in range(depth):
            if tree["type"] == "intra_attention":
                new, summaries[layer] = run_lstmn(w, f"cells.{layer}", x, tapes[layer], summaries[layer])
                tapes[layer].append(new)
                x = new[0]
            else:
                states[layer] = run_cell(w, f"cells.{layer}.cell", x, states[layer])
                x = states[layer][0]
        top = x
        read = np.tanh(linear(w, "combine", np.concatenate([top, context, embedded])))
        all_scores.append(linear(w, "output", read))
        all_weights.append(weights_T)
    return np.array(all_scores), np.array(all_weights)


CASES = [*DECODERS.values()]
CASES += [
    {"type": "attention", "attention": {"score": score} | location}
    for score in SCORES
    for location in ({}, {"location": 3})
]


@pytest.mark.parametrize("tree", CASES, ids=str)
@torch.no_grad()
def test_scores_and_weights_equal_the_papers(tree: dict[str, Any]) -> None:
    decoder = build(tree)
    tokens_BU, encoded_BTE, lengths_B = example()
    scores_BUV, weights = decoder(tokens_BU, encoded_BTE, lengths_B, decoder.last_heads)
    for row, length in enumerate(LENGTHS):
        encoded_TE = encoded_BTE[row, :length].numpy()
        expected_UV, expected_UT = follow_papers(tree, decoder, tokens_BU[row].tolist(), encoded_TE)
        np.testing.assert_allclose(scores_BUV[row], expected_UV, rtol=0, atol=1e-12)
        for weights_BHUT in weights.values():
            assert weights_BHUT.shape == (3, 1, 6, 9)
            np.testing.assert_allclose(weights_BHUT[row, 0, :, :length], expected_UT, rtol=0, atol=1e-12)
            assert not weights_BHUT[row, 0, :, length:].any()
    assert list(weights) == ([] if tree["type"] == "single_summary" else [0])


@every_decoder
@torch.no_grad()
def test_token_by_token_equals_all_at_once(name: str) -> None:
    """Also if utterances and beams are selected meanwhile: each beam continues from its own past."""
    decoder = build(DECODERS[name])
    tokens_BU, encoded_BTE, lengths_B = example(num_tokens=8)
    state = decoder.start(encoded_BTE, lengths_B)
    said = tokens_BU[:, :0]
    plan = [
        (None, None),
        (None, [0, 0, 1, 1, 2, 2]),  # two beams for each utterance
        (None, [1, 0, 2, 2, 5, 4]),
        ([2, 0], [5, 4, 0, 1]),  # the second utterance is finished
        (None, [0, 0, 1, 2, 2, 3]),  # three beams
        ([1], [4, 3, 5]),
    ]
    utterances = torch.arange(3)
    for step, (kept, rows) in enumerate(plan):
        if kept is not None:
            state.select_utterances(torch.tensor(kept))
            utterances = utterances[kept]
        if rows is not None:
            state.select_beams(torch.tensor(rows))
            said = said[rows]
        torch.manual_seed(step)
        new_R1 = torch.randint(NUM_SPECIAL, VOCAB_SIZE, (len(said) if step else 3, 1))
        said = torch.cat([said, new_R1], dim=1)
        scores_R1V, weights = decoder.step(new_R1, state, decoder.last_heads)
        memory = (encoded_BTE[utterances], lengths_B[utterances])
        expected_RUV, expected = decoder(said, *memory, decoder.last_heads)
        torch.testing.assert_close(scores_R1V[:, 0], expected_RUV[:, -1], rtol=0, atol=1e-12)
        for layer, weights_RHUT in weights.items():
            torch.testing.assert_close(weights_RHUT, expected[layer][:, :, -1:], rtol=0, atol=1e-12)
