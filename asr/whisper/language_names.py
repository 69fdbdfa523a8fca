"""Codes and names of Whisper's languages."""

from __future__ import annotations

import re

from asr.errors import UserError, suggest

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_TABLE = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese,
tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi,
fi finnish, vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish,
hu hungarian, ta tamil, no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin,
mi maori, ml malayalam, cy welsh, sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian,
az azerbaijani, sl slovenian, kn kannada, et estonian, mk macedonian, br breton, eu basque, is icelandic,
hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq albanian, sw swahili, gl galician,
mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, so somali, af afrikaans, oc occitan,
ka georgian, be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic, yi yiddish, lo lao, uz uzbek,
fo faroese, ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese, sa sanskrit, lb luxembourgish,
my myanmar, bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian, ln lingala, ha hausa,
ba bashkir, jw javanese, su sundanese, yue cantonese
"""
# Code to name. The first checkpoints have 99; large-v3 added Cantonese.
languages: dict[str, str] = dict(re.findall(r"([a-z]+) ([^,\n]+)", _TABLE))


def find_language(language: str) -> str:
    """Return the code of a language, given its code or name in upper or lower case."""
    requested = language.strip().lower()
    codes = {name: code for code, own in languages.items() for name in (code, own)}
    if requested not in codes:
        expected = "give a code such as en, de or zh, or its name in English"
        raise UserError(
            f"language {language!r}: not a language of Whisper; {suggest(requested, codes, expected)}"
        )
    return codes[requested]
