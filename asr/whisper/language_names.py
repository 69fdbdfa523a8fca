"""Languages of Whisper: their codes, and the names that people give them."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from asr.errors import UserError, suggest

_TABLE = """
en english, zh chinese/中文, de german/deutsch, es spanish/español, ru russian/русский, ko korean/한국어,
fr french/français, ja japanese/日本語, pt portuguese/português, tr turkish/türkçe, pl polish/polski,
ca catalan/català, nl dutch/nederlands, ar arabic/العربية, sv swedish/svenska, it italian/italiano,
id indonesian/bahasa indonesia, hi hindi/हिन्दी, fi finnish/suomi, vi vietnamese/tiếng việt,
he hebrew/עברית, uk ukrainian/українська, el greek/ελληνικά, ms malay/bahasa melayu, cs czech/čeština,
ro romanian/română, da danish/dansk, hu hungarian/magyar, ta tamil/தமிழ், no norwegian/norsk, th thai/ไทย,
ur urdu/اردو, hr croatian/hrvatski, bg bulgarian/български, lt lithuanian/lietuvių, la latin/latina,
mi maori/māori, ml malayalam/മലയാളം, cy welsh/cymraeg, sk slovak/slovenčina, te telugu/తెలుగు,
fa persian/فارسی, lv latvian/latviešu, bn bengali/বাংলা, sr serbian/српски, az azerbaijani/azərbaycanca,
sl slovenian/slovenščina, kn kannada/ಕನ್ನಡ, et estonian/eesti, mk macedonian/македонски,
br breton/brezhoneg, eu basque/euskara, is icelandic/íslenska, hy armenian/հայերեն, ne nepali/नेपाली,
mn mongolian/монгол, bs bosnian/bosanski, kk kazakh/қазақша, sq albanian/shqip, sw swahili/kiswahili,
gl galician/galego, mr marathi/मराठी, pa punjabi/ਪੰਜਾਬੀ, si sinhala/සිංහල, km khmer/ខ្មែរ,
sn shona/chishona, yo yoruba/yorùbá, so somali/soomaali, af afrikaans, oc occitan, ka georgian/ქართული,
be belarusian/беларуская, tg tajik/тоҷикӣ, sd sindhi/سنڌي, gu gujarati/ગુજરાતી, am amharic/አማርኛ,
yi yiddish/ייִדיש, lo lao/ລາວ, uz uzbek/oʻzbekcha, fo faroese/føroyskt, ht haitian creole/kreyòl ayisyen,
ps pashto/پښتو, tk turkmen/türkmençe, nn nynorsk, mt maltese/malti, sa sanskrit/संस्कृतम्,
lb luxembourgish/lëtzebuergesch, my myanmar/မြန်မာ, bo tibetan/བོད་ཡིག, tl tagalog, mg malagasy,
as assamese/অসমীয়া, tt tatar/татарча, haw hawaiian/ʻōlelo hawaiʻi, ln lingala/lingála, ha hausa,
ba bashkir/башҡортса, jw javanese/basa jawa, su sundanese/basa sunda, yue cantonese/粵語
"""  # in English, then in the language itself
_NAMES = {code: names.split("/") for code, names in re.findall(r"([a-z]+) ([^,\n]+)", _TABLE)}
# Code to name. The first checkpoints have 99 of them; Cantonese came with large-v3.
languages: dict[str, str] = {code: names[0] for code, names in _NAMES.items()}


def find_language(language: str) -> str:
    """The code of a language by code, English name or own name, in any case, with or without accents."""
    requested = _strip_accents(language)
    codes = {_strip_accents(name): code for code, names in _NAMES.items() for name in (code, *names)}
    if requested not in codes:
        expected = "give a code such as en, de or zh, or its name, in English or in the language itself"
        raise UserError(
            f"language {language!r}: not a language of Whisper; {suggest(requested, codes, expected)}"
        )
    return codes[requested]


def _strip_accents(text: str) -> str:
    split = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(character for character in split if not unicodedata.combining(character))


Task = Literal["transcribe", "translate"]
