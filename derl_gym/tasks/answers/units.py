r"""Units of measure and other words behind a value: ``10 \text{ cm}^2``, ``60 miles per hour``, ``18 apples``; times.

Words are no label where they change the value (``18 over seven``) or take it back (``72 wrong``): those stay where they
are. Works on the normal form of ``notation.py``.
"""

from __future__ import annotations

import re

_MEASURES = {
    "percent": "percent",
    "unit": "unit",
    "degree": "degree deg",
    "radian": "radian rad",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
    "kelvin": "kelvin",
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "acre": "acre",
    "hectare": "hectare ha",
    "mg": "mg milligram",
    "g": "g gm gram",
    "kg": "kg kilogram",
    "ton": "ton tonne",
    "oz": "oz ounce",
    "lb": "lb pound",
    "ms": "ms millisecond",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week wk",
    "month": "month",
    "year": "year yr",
    "cent": "cent penny pennie",
    "nickel": "nickel",
    "dime": "dime",
    "quarter": "quarter",
    "dollar": "dollar usd",
    "euro": "euro eur",
    "yen": "yen",
    "rupee": "rupee",
    "peso": "peso",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "cup": "cup",
    "pint": "pint pt",
    "quart": "quart qt",
    "gal": "gal gallon",
    "volt": "volt",
    "watt": "watt",
    "joule": "joule",
    "newton": "newton",
}
_MEASURE = {name: unit for unit, names in _MEASURES.items() for name in names.split()}
_SPEEDS = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h"}
_FUNCTIONS = "sin|cos|tan|sec|csc|cot|log|ln|exp|sqrt|pi|theta|infty|infinity|arc|frac"
_UNIT = re.compile(
    r'(?P<value>.*[0-9a-zA-Z)}\]!])\s*"(?P<text>[^"]*)"\s*(?:\^\s*\{?(?P<power>[0-9])\}?)?'
    rf"|(?P<value_>.*[0-9)}}\]])\s*(?P<text_>(?!{_FUNCTIONS})[a-zA-Z]{{2,}}(?:/[a-z]+)?\.?(?:\s+[a-zA-Z]{{2,}}\.?)*)"
    r"(?:\^\{?(?P<power_>[0-9])\}?)?"
)

_TEENS = "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_LARGE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_STEMS = "four fif six seven eigh nin ten eleven twelf twentie thirtie fortie fiftie sixtie seventie eightie ninetie"
_ORDINALS = "|".join([*_STEMS.split(), *(f"{n}" for n in _TEENS.split()[2:]), *_LARGE])
_OPERATORS = """minus plus times over divided multiplied half halves halved third thirds squared cubed power root
factorial mod modulo remainder double doubled triple tripled twice thrice negative positive than except without versus
vs raised not no never none cannot isn aren wrong incorrect false untrue invalid"""
_CHANGES = re.compile(
    r"(?<![\\a-zA-Z])(?:"
    + "|".join(
        [*f"zero one two three four five six seven eight nine ten {_TEENS} {_TENS}".split(), *_LARGE]
        + [*_OPERATORS.split(), r"dozens?", rf"(?:{_ORDINALS})ths?", r"point\s+[a-z0-9]+", r"(?:to|by)\s+[a-z]"]
    )
    + r")(?![a-zA-Z])",
    re.IGNORECASE,
)
_MULTIPLES = re.compile(
    r'(?<=[0-9}])((?:\s*"?\s*(?<![a-zA-Z])(?:hundred|thousand|million|billion|trillion|dozen)s?(?![a-zA-Z]))+)',
    re.IGNORECASE,
)


def multiplied(text: str) -> str:
    """Number words behind a number as a product: ``2 "million dollars"`` is ``2*10^6 "dollars"``."""

    def product(match: re.Match[str]) -> str:
        words = re.findall("[a-z]+", match[0].lower())
        factors = [f"*10^{_LARGE[name]}" if (name := word.removesuffix("s")) in _LARGE else "*12" for word in words]
        return "".join(factors) + (' "' if match[0].count('"') % 2 else "")

    return re.sub(r'(?<=[0-9]) "\s*"', "", _MULTIPLES.sub(product, text))


def changes_value(text: str) -> bool:
    """Whether there are words in the text that change a value, so that they are no label."""
    return _CHANGES.search(text) is not None


def without_unit(text: str) -> tuple[str, str]:
    r"""A normal form's value, and the unit of measure behind it: ``('10', 'cm^2')``, ``('60', 'mi/h')``.

    Words behind a value are a label: ``18 apples`` is 18. The unit is ``""`` when there is none, or when the label is
    no unit of measure. Outside of ``\text{}`` a word of two or three letters might be a product, and has to be a unit.
    Words that change the value are no label.
    """
    unit = ""
    while (match := _UNIT.fullmatch(text)) and clock(text) is None:
        quoted = match["text"] is not None
        label = (match["text"] if quoted else match["text_"]).strip()
        power = (match["power"] if quoted else match["power_"]) or ""
        found = _unit(label.lower(), power)
        first = re.match("[a-zA-Z]*", label)
        short = first is not None and len(first[0]) < (2 if quoted else 4) and bool(label)
        named = re.match(rf"(?:{_FUNCTIONS})(?![a-zA-Z])", label.lower())
        if not found and (short or named or changes_value(label) or re.search("[0-9]", label)):
            break
        unit = found or unit
        text = (match["value"] if quoted else match["value_"]).strip()
    return text, unit


def same_unit(one: str, other: str) -> bool:
    """Whether two units may stand for the same; "units" are any of that power, degrees those of a thermometer too."""
    if not one or not other or one == other:
        return True
    if "unit" in (one.partition("^")[0], other.partition("^")[0]):
        return one.partition("^")[2] == other.partition("^")[2]
    return "degree" in (one, other) and {one, other} & {"celsius", "fahrenheit"} != set()


def clock(text: str) -> int | None:
    """Seconds since midnight of ``20:34``, ``8:34:00 p.m.`` or ``9 a.m.``; ``None`` for anything else."""
    match = re.fullmatch(
        r"([0-9]{1,2})(?: ?: ?([0-5][0-9])(?: ?: ?([0-5][0-9]))?)? ?(?:([ap])\.? ?m\.?)?",
        text.replace('"', "").strip().lower(),
    )
    if not match or not (match[2] or match[4]):
        return None
    hour = int(match[1])
    if match[4]:
        hour = hour % 12 + (12 if match[4] == "p" else 0)
    return hour * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0)


def _unit(label: str, power: str) -> str:
    """The unit that a label in lower case is, or begins with; ``""`` when it is none."""
    if label.strip(". ") in _SPEEDS:
        return _SPEEDS[label.strip(". ")]
    parts = re.split(r"\s*/\s*|\s+per\s+", label)
    units = [_part(part, power if part is parts[-1] else "") for part in parts]
    known = next((i for i, unit in enumerate(units) if not unit), len(units))
    return "/".join(units[:known])


def _part(part: str, power: str) -> str:
    words = [word for word in re.split(r"[\s.]+", part) if word]
    if words and words[0] in ("square", "sq", "cubic", "cu"):
        power = "2" if words.pop(0).startswith("s") else "3"
    if len(words) > 1 and words[0] in ("degree", "degrees", "us"):
        words = words[1:] if _measure(words[1]) else words
    if len(words) == 2 and words[1] in ("squared", "cubed"):
        power = "2" if words.pop() == "squared" else "3"
    if not words or changes_value(" ".join(words[1:])):
        return ""
    name = re.fullmatch(r"([a-z]+)(?:\^?\{?([23])\}?)?", words[0])
    measure = _measure(name[1]) if name else None
    if not name or not measure or (len(words) > 1 and len(name[1]) < 4):  # "5 in total"
        return ""
    power = name[2] or power
    return f"{measure}^{power}" if power not in ("", "1") else measure


def _measure(name: str) -> str | None:
    return _MEASURE.get(name) or _MEASURE.get(name.removesuffix("s"))
