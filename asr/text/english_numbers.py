"""Write English numbers in words as digits: cardinals, ordinals, years, decimals, money, percent."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNIT_NAMES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen"""
_TEN_NAMES = """twenty thirty forty fifty sixty seventy eighty ninety"""
_SCALE_NAMES = """thousand million billion trillion quadrillion"""
_ORDINAL_NAMES = """zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"""
_UNITS = {word: value for value, word in enumerate(_UNIT_NAMES.split())}
_TENS = {word: 10 * value for value, word in enumerate(_TEN_NAMES.split(), start=2)}
_SCALES = {word: 1000**power for power, word in enumerate(_SCALE_NAMES.split(), start=1)}
_ORDINALS = {word: value for value, word in enumerate(_ORDINAL_NAMES.split())}
_ORDINALS |= {word.removesuffix("y") + "ieth": value for word, value in _TENS.items()}
_PLURAL_TENS = {word.removesuffix("y") + "ies": value for word, value in _TENS.items()}
_OH = ("oh", "o")
_REPEATS = {"double": 2, "triple": 3}
_SIGNS = {"minus": "-", "negative": "-", "plus": "+"}
_MONEY = {"dollar": "$", "dollars": "$", "pound": "£", "pounds": "£", "euro": "€", "euros": "€"}
_CENTS = ("cent", "cents")
_NUMERAL = re.compile(r"[$£€]?(\d+(\.\d+)?|\.\d+)")


@dataclass(frozen=True)
class _Number:
    """The meaning of `words[start:end]`. Digits stay text: of 007 the zeros count."""

    digits: str
    end: int
    money: str = ""
    suffix: str = ""
    """st, nd, rd, th, s or %."""


def write_numbers(words: list[str]) -> list[str]:
    """The words with all numbers as digits. A lone "one" stays a word, and a lone 1 becomes it."""
    result = []
    position = 0
    while position < len(words):
        sign = _SIGNS.get(words[position], "")
        number = _read_number(words, position + bool(sign))
        if number is None:
            result.append(words[position])
            position += 1
            continue
        written = f"{sign}{number.money}{number.digits}{number.suffix}"
        result.append("one" if written == "1" else written)
        position = number.end
    return result


def _read_number(words: list[str], start: int) -> _Number | None:
    is_bare_point = words[start : start + 1] == ["point"]
    number = _Number("", start) if is_bare_point else _read_pieces(words, start)
    if number is None:
        return None
    number = _read_fraction(words, number)
    if not number.digits:
        return None
    following = words[number.end] if number.end < len(words) else ""
    if number.suffix:
        return number
    if following in ("percent", "%") or words[number.end : number.end + 2] == ["per", "cent"]:
        return _Number(number.digits, number.end + (2 if following == "per" else 1), number.money, "%")
    if following in _CENTS and not number.money:
        return _Number(number.digits, number.end + 1, "¢")
    if following in _MONEY and not number.money:
        return _read_cents(words, _Number(number.digits, number.end + 1, _MONEY[following]))
    return number


def _read_pieces(words: list[str], start: int) -> _Number | None:
    """One cardinal, or several below a hundred that are said in a row: nineteen ninety nine, one oh five."""
    digits = money = ""
    end = start
    while True:
        is_first = end == start
        piece = _read_oh_or_repeat(words, end, is_first) or _read_cardinal(words, end)
        if piece is None or (piece.money and not is_first):
            break
        if not is_first and not _joins(digits, piece.digits, words[end]):
            break
        digits, end, money = digits + piece.digits, piece.end, money or piece.money
        if piece.suffix:
            return _Number(digits, end, money, piece.suffix)
        if "." in digits or _NUMERAL.fullmatch(words[end - 1]) or len(piece.digits) > 2:
            break
    return _Number(digits, end, money) if digits else None


def _joins(before: str, piece: str, word: str) -> bool:
    return len(piece) <= 2 and not _NUMERAL.fullmatch(word) and before != ""


def _read_oh_or_repeat(words: list[str], at: int, is_first: bool) -> _Number | None:
    word = words[at] if at < len(words) else ""
    following = words[at + 1] if at + 1 < len(words) else ""
    if word in _OH and not (is_first and following not in _UNITS):
        # Also last of all, as in "five oh", but never alone: "oh my".
        return _Number("0", at + 1)
    if word in _REPEATS:
        repeated = "0" if following in _OH else str(_UNITS.get(following, ""))
        if len(repeated) == 1:
            return _Number(repeated * _REPEATS[word], at + 2)
    return None


def _read_cardinal(words: list[str], start: int) -> _Number | None:
    """Read a number such as: two million and five; 2.5 million; twenty first; nineties."""
    total, limit, end, money = 0.0, float("inf"), start, ""
    while True:
        skip = int(end > start and words[end : end + 1] == ["and"])
        block = _read_block(words, end + skip, is_first=end == start)
        if block is None:
            break
        if (
            end == start
            and block.suffix == ""
            and "." in block.digits
            and _scale_at(words, block.end) is None
        ):
            return block
        value = float(block.digits)
        if value >= limit:
            break
        scale = _scale_at(words, block.end)
        if scale is None or scale[0] >= limit or block.suffix:
            if end == start:
                return block
            return _Number(_plain(total + value), block.end, money, _ordinal(total + value, block.suffix))
        money = money or block.money
        limit, suffix = scale
        total += value * limit
        end = block.end + 1
        if suffix:
            return _Number(_plain(total), end, money, _ordinal(total, suffix))
    return _Number(_plain(total), end, money) if end > start else None


def _scale_at(words: list[str], at: int) -> tuple[int, str] | None:
    """Thousand and up, with the ending of thousands or thousandth."""
    word = words[at] if at < len(words) else ""
    for suffix, ending in (("", ""), ("s", "s"), ("th", "th")):
        if word.endswith(suffix) and (scale := _SCALES.get(word.removesuffix(suffix) if suffix else word)):
            return scale, ending
    return None


def _read_block(words: list[str], at: int, is_first: bool) -> _Number | None:
    """Read up to a thousand, or to 9900 in hundreds; a numeral; or 1 before a bare thousand."""
    small = _read_small(words, at)
    if small is None:
        if is_first and _scale_at(words, at):
            return _Number("1", at)
        if is_first and (hundred := _hundred_at(words, at)) is not None:
            small = _Number("1", at)
        else:
            return None
    hundred = _hundred_at(words, small.end)
    if small.suffix or hundred is None or ("." in small.digits and not _NUMERAL.fullmatch(words[at])):
        return small
    value = float(small.digits) * 100
    end = small.end + 1
    if hundred:
        return _Number(_plain(value), end, small.money, _ordinal(value, hundred))
    skip = int(words[end : end + 1] == ["and"])
    rest = _read_small(words, end + skip)
    if (
        rest is None
        or rest.digits[0] == "0"
        or _hundred_at(words, rest.end) is not None
        or _NUMERAL.fullmatch(words[end + skip])
    ):
        return _Number(_plain(value), end, small.money)
    value += float(rest.digits)
    return _Number(_plain(value), rest.end, small.money, rest.suffix and _ordinal(value, rest.suffix))


def _hundred_at(words: list[str], at: int) -> str | None:
    """The ending of hundred, hundreds or hundredth; None if there is another word."""
    word = words[at] if at < len(words) else ""
    return {"hundred": "", "hundreds": "s", "hundredth": "th"}.get(word)


def _read_small(words: list[str], at: int) -> _Number | None:
    """Below a hundred in words, or a numeral of any size."""
    word = words[at] if at < len(words) else ""
    if _NUMERAL.fullmatch(word):
        money = word[0] if word[0] in "$£€" else ""
        return _Number(word.removeprefix(money), at + 1, money)
    if word in _UNITS:
        return _Number(str(_UNITS[word]), at + 1)
    if word in _ORDINALS:
        return _Number(str(_ORDINALS[word]), at + 1, suffix=_ordinal(_ORDINALS[word], "th"))
    if word in _PLURAL_TENS:
        return _Number(str(_PLURAL_TENS[word]), at + 1, suffix="s")
    if word not in _TENS:
        return None
    following = words[at + 1] if at + 1 < len(words) else ""
    if 1 <= _UNITS.get(following, 0) <= 9:
        return _Number(str(_TENS[word] + _UNITS[following]), at + 2)
    if 1 <= (unit := _ORDINALS.get(following, 0)) <= 9:
        return _Number(str(_TENS[word] + unit), at + 2, suffix=_ordinal(unit, "th"))
    return _Number(str(_TENS[word]), at + 1)


def _read_fraction(words: list[str], number: _Number) -> _Number:
    """Read what follows in "... point one five" or "... and a half"."""
    if number.suffix or "." in number.digits:
        return number
    if number.digits and words[number.end : number.end + 3] == ["and", "a", "half"]:
        return _Number(f"{number.digits}.5", number.end + 3, number.money)
    if words[number.end : number.end + 1] != ["point"]:
        return number
    decimals, end = "", number.end + 1
    while end < len(words):
        word = words[end]
        piece = _Number("0", end + 1) if word in _OH else _read_small(words, end)
        if piece is None or piece.suffix or not piece.digits.isdigit():
            break
        decimals, end = decimals + piece.digits, piece.end
    if not decimals:
        return number
    scale = _scale_at(words, end)
    if scale and not scale[1]:
        return _Number(_plain(float(f"{number.digits}.{decimals}") * scale[0]), end + 1, number.money)
    return _Number(f"{number.digits}.{decimals}", end, number.money)


def _read_cents(words: list[str], dollars: _Number) -> _Number:
    """Read what follows in "... and ten cents"."""
    at = dollars.end + (words[dollars.end : dollars.end + 1] == ["and"])
    cents = _read_small(words, at)
    if cents and cents.digits.isdigit() and int(cents.digits) < 100 and dollars.digits.isdigit():
        is_cents = cents.end < len(words) and words[cents.end] in _CENTS
        if is_cents:
            return _Number(f"{dollars.digits}.{int(cents.digits):02d}", cents.end + 1, dollars.money)
    return dollars


def _plain(value: float) -> str:
    return str(round(value)) if value == round(value) else f"{value:.10f}".rstrip("0")


def _ordinal(value: float, suffix: str) -> str:
    if suffix in ("", "s"):
        return suffix
    last_two = round(value) % 100
    return "th" if 10 <= last_two <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(last_two % 10, "th")
