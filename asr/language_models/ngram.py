"""N-grams and word lists for shallow fusion: ARPA files, estimation, scores of batches of rows.

To score, a context is a node: the root for no context, one for each n-gram below the highest order. The row
of a node holds the tokens that follow it in the file; for all others it backs off to the node without its
first token. N-grams of words become probabilities of characters: of the words that start as the last one does
so far, a character has the probability of those that continue with it; <unk> is spelled by equally likely
characters. The probabilities of a step sum to one, and a text has the probability that its words have.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.data.text_lines import read_lines
from asr.decoding.beam import score_texts
from asr.errors import UserError
from asr.files import replace_file
from asr.language_models.fusion import Columns, RowModel
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer

logger = logging.getLogger(__name__)

# R rows of a search, V vocabulary, C nodes, E entries: n-grams of order 2 and more, or edges of a tree
# Of words: W words of the file, S words that can be spelled, in alphabetical order of their tokens, N nodes
# of the tree of their prefixes

MARKS = START, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPACE = "<space>"  # how a space token is written, because spaces separate the words of a file
NO_PROBABILITY, TINY = -99.0, 1e-99  # log10 of 0 in ARPA, as text and as a number
# For counts of 1, 2 and 3 or more, if there are too few n-grams to estimate discounts.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
ROOT = 0
# Phones of an English word, one of which is a vowel: S M L is none, so these may be letters.
PRONUNCIATION = re.compile(
    r"(?=.*\b[AEIOU]\w)((A[AEHOWY]|E[HRY]|I[HY]|O[WY]|U[HW]|[BDFGKLMNPRSTVWYZ]|[CDHJSTZ]H|NG)[012]?( |$))+",
    re.IGNORECASE,
)
# Up to this many nodes times tokens (50 MB), all scores are computed once: over ten times as fast for 10,000
# n-grams.
MAX_DENSE = 4_000_000

Ngram = tuple[str, ...]

# --- files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arpa:
    """Log10 probabilities and back-off weights of n-grams, by order from 1."""

    orders: list[dict[Ngram, tuple[float, float]]]

    @property
    def vocabulary(self) -> list[str]:
        return [words[0] for words in self.orders[0]]


def read_arpa(path: str | Path) -> Arpa:
    """Read a file, and check that it is complete. A missing back-off weight is 0."""
    orders: list[dict[Ngram, tuple[float, float]]] = []
    counts: list[int] = []
    is_inside = False
    for number, _, content in read_lines(path):
        try:
            line = content.decode("utf-8").strip("\r \t")
            if line == "\\data\\":
                is_inside = True
            elif line == "\\end\\":
                break
            elif not line or not is_inside:
                continue
            elif line == f"\\{len(orders) + 1}-grams:":
                orders.append({})
            elif orders:
                ngram, values = _parse_ngram(line, len(orders))
                orders[-1][ngram] = values
            else:
                counts.append(int(line.removeprefix("ngram ").rpartition("=")[2]))
        except ValueError:  # includes UnicodeDecodeError
            shown = content.decode(errors="replace")[:60]
            expected = f"a log10 probability, {len(orders)} words, and a weight or none"
            raise UserError(
                f"{path}:{number}: {shown!r}, but expected {expected if orders else 'ngram 1=1000'}, in an "
                "ARPA file as text (KenLM's binary ones are not read)"
            ) from None
    else:
        raise UserError(f"{path}: no \\end\\; expected a complete ARPA file, as text")
    sizes = [len(order) for order in orders]
    if sizes != counts or not sizes:
        found, declared = (", ".join(map(str, own)) or "no" for own in (sizes, counts))
        raise UserError(f"{path}: {found} n-grams, but its header has {declared}; the file is damaged")
    return Arpa(orders)


def _parse_ngram(line: str, order: int) -> tuple[Ngram, tuple[float, float]]:
    # Only at blanks and tabs, because a no-break space may be a token.
    first, *words = line.replace("\t", " ").split(" ")
    values = float(first), float(words.pop()) if len(words) > order else 0.0
    if len(words) != order or math.isnan(values[0]) or math.isnan(values[1]) or values[0] > 0:
        raise ValueError
    return tuple(" " if word == SPACE else word for word in words), values


def write_arpa(path: str | Path, arpa: Arpa) -> None:
    counts = [f"ngram {number}={len(order)}" for number, order in enumerate(arpa.orders, start=1)]
    with replace_file(path) as file:
        file.write("\n".join(["\\data\\", *counts, ""]).encode())
        for number, order in enumerate(arpa.orders, start=1):
            file.write(f"\n\\{number}-grams:\n".encode())
            for words, (log_probability, back_off) in order.items():
                text = " ".join(SPACE if word == " " else word for word in words)
                weight = f"\t{back_off:.7g}" if number < len(arpa.orders) and words[-1] != END else ""
                file.write(f"{log_probability:.7g}\t{text}{weight}\n".encode())
        file.write(b"\n\\end\\\n")


# --- estimation ---------------------------------------------------------------------------------


def estimate_ngrams(sentences: Iterable[Sequence[str]], order: int, vocabulary: Collection[str] = ()) -> Arpa:
    """Estimate by interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999), in memory, unpruned.

    Words of `vocabulary` that do not occur share the probability of unknown words with <unk>.
    """
    counts = count_ngrams(sentences, order)
    if not counts[0]:
        raise UserError("n-grams are estimated from sentences, but there are none")
    counts = [*map(_adjust, counts, counts[1:]), counts[-1]]
    counts[0].pop((START,), None)  # never predicted, only a context
    words = dict.fromkeys([END, *sorted(word for (word,) in counts[0]), *vocabulary, UNKNOWN])
    words.pop(START, None)

    # Level 0: all words equally likely.
    lower: dict[Ngram, float] = {(): 1 / len(words)}
    weights: list[dict[Ngram, float]] = []
    levels: list[dict[Ngram, float]] = []
    for level in counts:
        lower, weight = _interpolate(level, lower)
        levels.append(lower)
        weights.append(weight)
    rest = weights[0][()] / len(words)
    unigrams: dict[Ngram, float] = {(word,): levels[0].get((word,), rest) for word in words}
    levels[0] = {(START,): 0.0} | unigrams
    weights.append({})
    return Arpa(
        [
            {
                ngram: (math.log10(value or TINY), math.log10(longer.get(ngram, 1.0) or TINY))
                for ngram, value in level.items()
            }
            for level, longer in zip(levels, weights[1:], strict=True)
        ]
    )


def count_ngrams(sentences: Iterable[Sequence[str]], order: int) -> list[Counter[Ngram]]:
    """Count the n-grams of each order; a sentence has one start and one end."""
    counts: list[Counter[Ngram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        words = (START, *sentence, END)
        if {START, END} & set(sentence):
            raise UserError(f"{' '.join(sentence)[:60]!r}: {START} and {END} stand for start and end; remove")
        for size, counter in enumerate(counts, start=1):
            counter.update(zip(*(words[start:] for start in range(size)), strict=False))
    return counts


def _adjust(counts: Counter[Ngram], longer: Counter[Ngram]) -> Counter[Ngram]:
    """Count contexts instead of occurrences (Kneser-Ney), except after a sentence start."""
    contexts = Counter(ngram[1:] for ngram in longer)
    return Counter({ngram: counts[ngram] if ngram[0] == START else contexts[ngram] for ngram in counts})


def _interpolate(
    counts: Counter[Ngram], lower: dict[Ngram, float]
) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Return n-gram probabilities, and for each context the weight of the next lower order."""
    discounts = _discounts(counts)
    totals: dict[Ngram, float] = defaultdict(float)
    left: dict[Ngram, float] = defaultdict(float)
    for ngram, count in counts.items():
        totals[ngram[:-1]] += count
        left[ngram[:-1]] += discounts[min(count, 3) - 1]
    weights = {context: left[context] / total for context, total in totals.items()}
    probabilities = {
        ngram: (count - discounts[min(count, 3) - 1]) / totals[ngram[:-1]]
        + weights[ngram[:-1]] * lower[ngram[1:]]
        for ngram, count in counts.items()
    }
    return probabilities, weights


def _discounts(counts: Counter[Ngram]) -> tuple[float, ...]:
    """Compute the discounts for counts of 1, 2 and 3 or more from the counts of counts 1 to 4."""
    having = Counter(min(count, 5) for count in counts.values())
    if not all(having[count] for count in (1, 2, 3)):
        return FALLBACK_DISCOUNTS
    ratio = having[1] / (having[1] + 2 * having[2])
    discounts = tuple(n - (n + 1) * ratio * having[n + 1] / having[n] for n in (1, 2, 3))
    are_valid = all(0 <= value <= n for n, value in enumerate(discounts, start=1))
    return discounts if are_valid else FALLBACK_DISCOUNTS


# --- n-grams of tokens --------------------------------------------------------------------------


def token_vocabulary(tokens: Sequence[str]) -> list[str]:
    """Return the ARPA words of a tokenizer's tokens by ID; special tokens have their own."""
    names = {SOS_ID: START, EOS_ID: END, UNK_ID: UNKNOWN}
    return [names.get(id, token) for id, token in enumerate(tokens)]


class NgramTables:
    """N-grams as tensors on the CPU. A missing word is as likely as <unk>."""

    def __init__(self, arpa: Arpa, ids: dict[str, int]) -> None:
        nodes: dict[Ngram, int] = {(): ROOT}
        back_off, shorter = [0.0], [ROOT]
        for order in arpa.orders[:-1]:
            for words, (_, weight) in order.items():
                back_off.append(_natural(weight))
                shorter.append(_longest_node(words[1:], nodes))
                nodes[words] = len(nodes)
        entries = []
        for order in arpa.orders[1:]:
            for words, (log_probability, _) in order.items():
                if (node := nodes.get(words[:-1])) is None:
                    raise UserError(
                        f"the n-gram {' '.join(words)!r} is there, but not its prefix, "
                        f"{' '.join(words[:-1])!r}; the ARPA file is damaged"
                    )
                target = nodes[words] if words in nodes else _longest_node(words[1:], nodes)
                entries.append((node * len(ids) + ids[words[-1]], _natural(log_probability), target))
        entries.sort()
        unigrams = {words[0]: _natural(values[0]) for words, values in arpa.orders[0].items()}
        unknown = unigrams.get(UNKNOWN, _natural(NO_PROBABILITY))
        scores = [unigrams.get(word, unknown) for word in ids]
        for word in (START, SPECIAL_TOKENS[BLANK_ID], SPECIAL_TOKENS[PAD_ID]):  # tokens that no text contains
            if word in ids:
                scores[ids[word]] = -math.inf
        self.unigrams_V = torch.tensor(scores)
        self.back_off_C = torch.tensor(back_off)
        self.shorter_C = torch.tensor(shorter)  # the node without its first token
        self.keys_E = torch.tensor([key for key, _, _ in entries], dtype=torch.int64)  # node * V + token
        self.scores_E = torch.tensor([score for _, score, _ in entries], dtype=torch.float32)
        self.nodes_E = torch.tensor([target for _, _, target in entries], dtype=torch.int64)
        self.num_entries_C = torch.bincount(self.keys_E // len(ids), minlength=len(nodes))
        self.first_entry_C = self.num_entries_C.cumsum(0) - self.num_entries_C
        self.unigram_nodes_V = torch.tensor([nodes.get((word,), ROOT) for word in ids])
        self.scores_CV, self.nodes_CV = torch.empty(0), torch.empty(0)
        if len(nodes) * len(ids) <= MAX_DENSE:
            nodes_C, tokens_V = torch.arange(len(nodes)), torch.arange(len(ids))
            moves = self.advance(nodes_C.repeat_interleave(len(ids)), tokens_V.repeat(len(nodes)))
            self.scores_CV, self.nodes_CV = self.score(nodes_C), moves.view(len(nodes), len(ids))

    def advance(self, nodes_R: Tensor, tokens_R: Tensor) -> Tensor:
        """Find the longest known context that ends in the new tokens."""
        if self.nodes_CV.numel():
            return self.nodes_CV[nodes_R, tokens_R]
        vocab_size, num_entries = len(self.unigrams_V), len(self.keys_E)
        targets_R = torch.full_like(nodes_R, -1)
        while num_entries and bool((nodes_R != ROOT).any()):
            keys_R = nodes_R * vocab_size + tokens_R
            positions_R = torch.searchsorted(self.keys_E, keys_R).clamp(max=num_entries - 1)
            is_hit_R = (self.keys_E[positions_R] == keys_R) & (targets_R < 0)
            targets_R = torch.where(is_hit_R, self.nodes_E[positions_R], targets_R)
            nodes_R = torch.where(targets_R < 0, self.shorter_C[nodes_R], ROOT)
        return torch.where(targets_R < 0, self.unigram_nodes_V[tokens_R], targets_R)

    def score(self, nodes_R: Tensor) -> Tensor:
        """Compute (R, V) scores from the shortest context to the longest: back off, insert the file's."""
        if self.scores_CV.numel():
            return self.scores_CV[nodes_R]
        chain = [nodes_R]
        while bool((chain[-1] != ROOT).any()):
            chain.append(self.shorter_C[chain[-1]])
        scores_RV = self.unigrams_V.repeat(len(nodes_R), 1)
        for nodes_R in chain[::-1]:
            scores_RV += self.back_off_C[nodes_R][:, None]  # the root weighs 0 and has no entries
            counts_R = self.num_entries_C[nodes_R]
            rows, entries = _expand(self.first_entry_C[nodes_R], counts_R)
            scores_RV[rows, self.keys_E[entries] % len(self.unigrams_V)] = self.scores_E[entries]
        return scores_RV


def _expand(firsts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and index of each entry, for rows with `counts` entries starting at `firsts`."""
    rows = torch.repeat_interleave(counts)
    inside = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    return rows, firsts[rows] + inside


class NgramModel(RowModel):
    """N-grams of tokens, in natural logarithms. `vocabulary` has all words of the file."""

    def __init__(self, arpa: Arpa, vocabulary: Sequence[str]) -> None:
        self._ids = {word: id for id, word in enumerate(vocabulary)}
        self._tables = NgramTables(arpa, self._ids)

    def log_probability(self, sentences: Iterable[Sequence[str]]) -> float:
        """Sum over all sentences and their ends; words outside the vocabulary count as <unk>."""
        ids, total = self._ids, 0.0
        for words in sentences:
            tokens_1U = torch.tensor([[ids.get(word, ids[UNKNOWN]) for word in words]]).long()
            total += float(score_texts(self, tokens_1U, torch.tensor([len(words)]), ids[START], ids[END]))
        return total

    def step(self, columns: Columns | None, tokens_R: Tensor) -> tuple[Columns, Tensor]:
        tokens_R = tokens_R.cpu()
        nodes_R = torch.full_like(tokens_R, ROOT) if columns is None else columns[0]
        nodes_R = self._tables.advance(nodes_R, tokens_R)
        return (nodes_R,), self._tables.score(nodes_R)


def _longest_node(words: Ngram, nodes: dict[Ngram, int]) -> int:
    while words not in nodes:
        words = words[1:]
    return nodes[words]


def _natural(log10: float) -> float:
    return -math.inf if log10 <= NO_PROBABILITY else log10 * math.log(10)


# --- n-grams of words ---------------------------------------------------------------------------


def build_ngram_model(arpa: Arpa, tokenizer: Tokenizer) -> NgramModel | WordNgramModel:
    """Build a token model if all words of the file, and the space if any, are tokens; else a word model."""
    tokens, words = token_vocabulary(tokenizer.tokens), set(arpa.vocabulary)
    if words <= set(tokens) and (" " in words or " " not in tokens):
        return NgramModel(arpa, tokens)
    if " " in words:
        raise UserError(
            f"n-grams of tokens, since {SPACE} is one of them, but the model has no token "
            f"{_name_some(words - set(tokens))}; estimate them with its tokenizer (asr ngram --unit tokens)"
        )
    return WordNgramModel(arpa, tokenizer)


class WordNgramModel(RowModel):
    """Word n-grams, on the CPU, for character or phone tokenizers, which have a token between words."""

    def __init__(self, arpa: Arpa, tokenizer: Tokenizer) -> None:
        self.space_id = _require_space(tokenizer, "an n-gram of words (asr ngram --unit words)")
        arpa = _fold_case(arpa, tokenizer)
        words = [*arpa.vocabulary, *(w for w in (UNKNOWN, END, START) if (w,) not in arpa.orders[0])]
        self.word_ids = {word: id for id, word in enumerate(words)}
        self.ngrams = NgramTables(arpa, self.word_ids)
        vocab_size = len(tokenizer)
        spellings = {id: _spell(tokenizer, word) for word, id in self.word_ids.items() if word not in MARKS}
        spelled = sorted((tokens, id) for id, tokens in spellings.items() if tokens)
        nodes: dict[tuple[int, ...], int] = {(): ROOT}
        spans = [[0, len(spelled)]]
        for position, (tokens, _) in enumerate(spelled):
            for end in range(1, len(tokens) + 1):
                if nodes.setdefault(tokens[:end], len(nodes)) == len(spans):
                    spans.append([position, position])
                spans[nodes[tokens[:end]]][1] = position + 1
        spans.append([0, 0])  # no word begins like this
        self.children_NV = torch.full((len(spans), vocab_size), len(nodes))
        for tokens, node in nodes.items():
            if tokens:
                self.children_NV[nodes[tokens[:-1]], tokens[-1]] = node
        self.spans_N2 = torch.tensor(spans)
        self.order_S = torch.tensor([id for _, id in spelled], dtype=torch.int64)
        self.word_of_N = torch.full((len(spans),), self.word_ids[UNKNOWN])
        for tokens, id in spelled:
            self.word_of_N[nodes[tokens]] = id
        self.is_character_V = torch.arange(vocab_size) >= UNK_ID
        self.is_character_V[self.space_id] = False
        self.num_symbols = int(self.is_character_V.sum()) + 1  # and the end of the word

    def step(self, columns: Columns | None, tokens_R: Tensor) -> tuple[Columns, Tensor]:
        """The columns: node of the words so far, scores of the next, its node and number of characters."""
        tokens_R = tokens_R.cpu()
        if columns is None:
            nodes_R, depths_R = torch.full_like(tokens_R, ROOT), torch.zeros_like(tokens_R)
            history_R = self.ngrams.advance(nodes_R, torch.full_like(tokens_R, self.word_ids[START]))
            scores_RW = self.ngrams.score(history_R)
        else:
            history_R, scores_RW, nodes_R, depths_R = columns
            ends_R = tokens_R == self.space_id
            if bool(ends_R.any()):
                after_R = self.ngrams.advance(history_R, self.word_of_N[nodes_R])
                history_R = torch.where(ends_R, after_R, history_R)
                scores_RW = torch.where(ends_R[:, None], self.ngrams.score(history_R), scores_RW)
            nodes_R = self.children_NV[nodes_R, tokens_R].masked_fill(ends_R, ROOT)
            depths_R = (depths_R + 1).masked_fill(ends_R, 0)
        columns_after = history_R, scores_RW, nodes_R, depths_R
        probabilities_RV = self._next_probabilities(*columns_after, is_new=columns is None)
        return columns_after, probabilities_RV.clamp(max=1).log().float()

    def _next_probabilities(
        self, history_R: Tensor, scores_RW: Tensor, nodes_R: Tensor, depths_R: Tensor, is_new: bool
    ) -> Tensor:
        """(R, V) probabilities of the next character, of the space and of the end."""
        words_RW = scores_RW.double().exp()
        sums_RS = F.pad(words_RW[:, self.order_S].cumsum(1), (1, 0))
        unknown_R = words_RW[:, self.word_ids[UNKNOWN]] * float(self.num_symbols) ** -depths_R
        word_R = self.word_of_N[nodes_R]
        word_probability_R = words_RW.gather(1, word_R[:, None])[:, 0]
        word_probability_R = (
            word_probability_R.masked_fill(word_R == self.word_ids[UNKNOWN], 0.0)
            + unknown_R / self.num_symbols
        )
        after_RW = self.ngrams.score(self.ngrams.advance(history_R, word_R))
        ends_R = after_RW[:, self.word_ids[END]].double().exp()

        spans_RV2 = self.spans_N2[self.children_NV[nodes_R]]
        parts_RV = sums_RS.gather(1, spans_RV2[..., 1]) - sums_RS.gather(1, spans_RV2[..., 0])
        parts_RV = (parts_RV.clamp(min=0) + unknown_R[:, None] / self.num_symbols) * self.is_character_V
        all_R2 = sums_RS.gather(1, self.spans_N2[nodes_R])
        all_R = all_R2[:, 1] - all_R2[:, 0] + unknown_R
        parts_RV[:, self.space_id] = word_probability_R * (1 - ends_R)
        parts_RV[:, EOS_ID] = word_probability_R * ends_R
        next_RV = parts_RV / all_R[:, None]
        if is_new:  # no token yet, so the end is a word
            none_R = words_RW[:, self.word_ids[END]]
            next_RV *= 1 - none_R[:, None]
            next_RV[:, EOS_ID] += none_R
        return next_RV


# --- word lists ---------------------------------------------------------------------------------


class WordList(RowModel):
    """Scores of 0 and -inf, on the CPU, that limit a beam to known words that the tokens can spell."""

    def __init__(self, tokenizer: Tokenizer, words: Iterable[str]) -> None:
        self.space_id = _require_space(tokenizer, "a word list")
        self.vocab_size = len(tokenizer)
        edges: dict[int, int] = {}  # node and token, as one number, to the node after
        ends = []
        words = [*words]
        fold = _choose_case(tokenizer, words, "word list", 0)
        for spelling in filter(None, (_spell(tokenizer, fold(word)) for word in words)):
            node = ROOT
            for token in spelling:
                node = edges.setdefault(node * self.vocab_size + token, len(edges) + 1)
            ends.append(node)
        self.dead = len(edges) + 1  # no word begins like this
        self.is_word_N = torch.zeros(self.dead + 1, dtype=torch.bool)
        self.is_word_N[ends] = True
        self.keys_E, self.targets_E = torch.tensor(sorted(edges.items()), dtype=torch.int64).T.contiguous()
        self.num_edges_N = torch.bincount(self.keys_E // self.vocab_size, minlength=self.dead + 1)
        self.first_edge_N = self.num_edges_N.cumsum(0) - self.num_edges_N

    def step(self, columns: Columns | None, tokens_R: Tensor) -> tuple[Columns, Tensor]:
        """The column: prefix of the word that each text is in."""
        tokens_R = tokens_R.cpu()
        if columns is None:
            nodes_R = torch.full_like(tokens_R, ROOT)
        else:
            (before_R,) = columns
            keys_R = before_R * self.vocab_size + tokens_R
            positions_R = torch.searchsorted(self.keys_E, keys_R).clamp(max=len(self.keys_E) - 1)
            nodes_R = torch.where(self.keys_E[positions_R] == keys_R, self.targets_E[positions_R], self.dead)
            ended_R = torch.where(self.is_word_N[before_R], ROOT, self.dead)
            nodes_R = torch.where(tokens_R == self.space_id, ended_R, nodes_R)
        is_over_R = self.is_word_N[nodes_R]
        rows, edges = _expand(self.first_edge_N[nodes_R], self.num_edges_N[nodes_R])
        allowed_RV = torch.zeros(len(nodes_R), self.vocab_size, dtype=torch.bool)
        allowed_RV[rows, self.keys_E[edges] % self.vocab_size] = True
        allowed_RV[:, self.space_id] = is_over_R
        allowed_RV[:, EOS_ID] = is_over_R | (columns is None)  # the empty text is allowed
        return (nodes_R,), torch.zeros(allowed_RV.shape).masked_fill(~allowed_RV, -math.inf)


def _require_space(tokenizer: Tokenizer, what: str) -> int:
    if tokenizer.space_id is None:
        raise UserError(f"{what} needs a tokenizer of characters or phones and a space, not {tokenizer.type}")
    return tokenizer.space_id


def collect_words(texts: Iterable[str]) -> list[str]:
    return sorted({word for text in texts for word in text.split()})


def read_word_list(path: str, texts: Iterator[str]) -> list[str]:
    """Read a list of words, several per line; refuse a lexicon, whose phones would become words."""
    first = [*itertools.islice(texts, 1000)]
    if _are_pronunciations(first):
        raise UserError(
            f"{path}: a pronunciation lexicon, a word and its phones on each line ({first[-1][:60]!r}); "
            "expected a list of words, such as its first column; pronunciations belong in tokenizer.lexicon"
        )
    return collect_words(itertools.chain(first, texts))


def _are_pronunciations(lines: Sequence[str]) -> bool:
    """Check whether most lines have a word and its phones, English or evident from many lines."""
    entries = [line.split() for line in lines]
    if 2 * sum(bool(PRONUNCIATION.fullmatch(" ".join(line[1:]))) for line in entries) > len(lines):
        return True
    phones = [phone for line in entries for phone in line[1:]]
    are_short = len(phones) > 3 * len(lines) and sum(map(len, phones)) < 3 * len(phones)
    return are_short and len({line[0] for line in entries}) > max(50, 2 * len({*phones}))


# --- spelling -----------------------------------------------------------------------------------


def _spell(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    """Return the tokens of a word; none if they cannot spell it."""
    tokens = tuple(tokenizer.encode(word))
    return () if {UNK_ID, tokenizer.space_id} & {*tokens} else tokens


def _fold_case(arpa: Arpa, tokenizer: Tokenizer) -> Arpa:
    """Keep n-grams that the tokens can spell; of those that differ only in case, the likeliest stays."""
    fold = _choose_case(tokenizer, {*arpa.vocabulary}.difference(MARKS), "language model", 0.1)
    folded: list[dict[Ngram, tuple[float, float]]] = [{} for _ in arpa.orders]
    for order, own in zip(arpa.orders, folded, strict=True):
        for words, values in order.items():
            ngram = tuple(word if word in MARKS else fold(word) for word in words)
            own[ngram] = max(values, own.get(ngram, values))
    return Arpa(folded)


def _choose_case(
    tokenizer: Tokenizer, words: Collection[str], what: str, may_lack: float
) -> Callable[[str], str]:
    """Keep words as they are if the tokens spell half of them, else convert them to the better case."""

    def find_missing(fold: Callable[[str], str]) -> list[str]:
        return [word for word in words if not _spell(tokenizer, fold(word))]

    fold: Callable[[str], str] = str
    missing = find_missing(fold)
    if 2 * len(missing) > len(words):
        folds: tuple[Callable[[str], str], ...] = str, str.upper, str.lower
        fold = min(folds, key=lambda own: len(find_missing(own)))
        missing = find_missing(fold)
    if len(missing) == len(words):
        raise UserError(
            f"{what}: none of its {len(words):,} words ({_name_some(words)}) can be spelled with the model's "
            f"tokens ({_name_some(tokenizer.tokens[UNK_ID + 1 :])}), in upper or lower case either; expected "
            "words that are written as in the training texts"
        )
    if fold is not str:
        case = "upper" if fold is str.upper else "lower"
        logger.warning("%s: words converted to %s case to match the model's tokens", what, case)
    if len(missing) > may_lack * len(words):
        message = "%s: %s of its %s words (%.0f %%) cannot be spelled with the model's tokens, such as %s"
        counts = f"{len(missing):,}", f"{len(words):,}", 100 * len(missing) / len(words)
        logger.warning(message, what, *counts, _name_some(missing))
    return fold


def _name_some(names: Iterable[str]) -> str:
    return ", ".join(map(repr, heapq.nsmallest(3, names))) or "there is none"
