#!/usr/bin/env python3
"""Makes `fixtures/golden/python/`: how Python reads and writes JSON, and how it rounds. Standard library only.

`fixtures/README.md` describes the files.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
from fractions import Fraction
from typing import Any, Iterator

import records
import release


def dumps(value: Any) -> str:
    """Writes a value as the release's `render` writes one that is not a string."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def from_bits(bits: int) -> float:
    """Returns the double with these bits."""
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def integers() -> Iterator[str]:
    """Integers as text."""
    yield from (
        "0",
        "-0",
        "1",
        "-1",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "100000000000000000000000",
    )
    rng = random.Random("integers")
    for digits in (1, 2, 15, 16, 17, 18, 19, 20, 21, 39, 40, 100, 309, 310, 1000, 4299, 4300):
        for _ in range(1 if digits > 1000 else 8):
            yield rng.choice(["", "-"]) + rng.choice("123456789") + "".join(rng.choices("0123456789", k=digits - 1))


def decimal_text(value: Fraction) -> str:
    """Spells a fraction whose denominator is a power of two with all its digits."""
    scale = value.denominator.bit_length() - 1
    digits = str(abs(value.numerator) * 5**scale)
    whole, part = (digits[:-scale] or "0", digits[-scale:].rjust(scale, "0")) if scale else (digits, "0")
    return f"{'-' if value < 0 else ''}{whole}.{part}"


def floats() -> Iterator[str]:
    """Floats as text: every form of the grammar, all exponents, ties between neighbours, neighbours of powers of ten."""
    yield from (
        "0.0",
        "-0.0",
        "0e0",
        "-0e5",
        "0E-400",
        "-0.000e+400",
        "1e400",
        "-1e400",
        "1e-400",
        "-1e-400",
        "1E5",
        "1e+5",
        "1e05",
        "1e-05",
        "1.0E+16",
        "0.1e1",
        "123e-2",
        "1e00016",
    )
    yield from ("NaN", "Infinity", "-Infinity")
    rng = random.Random("floats")
    for exponent in range(-330, 312):
        yield f"1e{exponent}"
        yield f"{rng.randint(1, 9)}.{rng.randint(0, 10 ** rng.randint(1, 18))}{rng.choice('eE')}{exponent}"
    for exponent in range(-8, 23):
        for neighbour in (math.nextafter(10.0**exponent, 0), math.nextafter(10.0**exponent, math.inf)):
            yield repr(neighbour)
    for _ in range(1200):
        value = from_bits(rng.getrandbits(64))
        if math.isfinite(value):
            yield repr(value)
    for _ in range(500):
        yield f"{rng.choice(['', '-'])}{rng.randint(0, 10 ** rng.randint(1, 12))}.{rng.randint(0, 10 ** rng.randint(1, 24))}"
    for _ in range(120):
        low = from_bits(rng.randint(0x3C00, 0x43F0) << 48 | rng.getrandbits(48))
        middle = (Fraction(low) + Fraction(math.nextafter(low, math.inf))) / 2
        text = decimal_text(middle)  # its last digit is the 5 of a half, or the 0 of a whole number
        below = text[:-1] + "49" if text.endswith("5") else f"{int(middle) - 1}.9999"
        yield from (text, text + "1", below)
    for bits in (1, 2, 3, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x0010000000000001, 0x7FEFFFFFFFFFFFFF):
        low = Fraction(from_bits(bits))
        yield repr(from_bits(bits))
        yield decimal_text((low + Fraction(from_bits(bits - 1))) / 2)


def strings() -> Iterator[str]:
    """String literals: each character below U+0100 escaped and, where legal, raw; every short escape; every script."""
    for code in range(0x100):
        yield f'"\\u{code:04x}"'
        if code >= 0x20 and chr(code) not in '"\\':
            yield f'"{chr(code)}"'
    yield from (f'"\\{c}"' for c in '"\\/bfnrt')
    yield from (
        '"\\uD83D\\uDE00"',
        '"\\ud83d\\ude00"',
        '"\\uFFFE\\uFFFF"',
        '"\\u2028\\u2029"',
        '"\u2028\u2029\ufeff"',
        '"\\u00E9\\u00e9"',
        '""',
    )
    yield from (
        json.dumps(text, ensure_ascii=ascii_only) for text in records.SCRIPTS.values() for ascii_only in (False, True)
    )
    rng = random.Random("strings")
    for _ in range(150):
        yield json.dumps(records.random_text(rng, rng.randint(1, 40)), ensure_ascii=rng.random() < 0.5)


def values() -> Iterator[str]:
    """Containers: key order, duplicates, blanks, nesting."""
    yield from (
        "null",
        "true",
        "false",
        "[]",
        "{}",
        " [ ] ",
        "\t{\n}\r",
        "[[],{},[{}]]",
        '{"a":1,"a":2}',
        '{"b":1,"a":{"d":1,"c":2},"b":3}',
    )
    yield from (
        '{"\\ud83d\\ude00":1,"\\uffff":2,"\\ue000":3,"\\ud7ff":4,"z":5,"":6,"é":7,"e\\u0301":8}',
        '{"a":1,"A":2,"aa":3,"a\\u0000":4,"a ":5,"_":6,"~":7}',
    )
    yield from ('{"10":1,"9":2,"1":3,"-1":4,"1.0":5}', '[1,1.0,"1",true,null,-0,-0.0]', '{ "k" : [ 1 , 2 ] ,"j":{ } }')
    rng = random.Random("values")
    for _ in range(300):
        yield json.dumps(records.random_value(rng, 4), ensure_ascii=rng.random() < 0.5)
    for _ in range(60):
        keys = sorted({random_key(rng) for _ in range(rng.randint(2, 12))})
        rng.shuffle(keys)
        yield json.dumps({key: i for i, key in enumerate(keys)}, ensure_ascii=rng.random() < 0.5)


def random_key(rng: random.Random) -> str:
    """Draws up to three characters from below the surrogates, above them, or among three letters."""
    ranges = [(0x20, 0xD7FF), (0xE000, 0x10FFFF), (0x61, 0x63)]
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 3)))


REFUSED = [
    "",
    " ",
    "01",
    "-01",
    "00",
    "1.",
    "-1.",
    ".5",
    "+1",
    "1e",
    "1e+",
    "1.e5",
    "0x10",
    "1_000",
    "--1",
    "-",
    "1 2",
    "nan",
    "-NaN",
    "+Infinity",
    "Inf",
    "-infinity",
    "infinity",
    "tru",
    "True",
    "nul",
    "None",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[",
    "]",
    "[1",
    '{"a":1,}',
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "{1:2}",
    '{"a":1 "b":2}',
    "{",
    "}",
    '{"a":1',
    "'a'",
    '"a',
    'a"',
    '"\\x41"',
    '"\\u12"',
    '"\\u12G4"',
    '"\\U0041"',
    '"\\"',
    '"\\a"',
    '"\\u 041"',
    '"a\nb"',
    '"a\tb"',
    '"\x00"',
    '"\x1f"',
    "\u00a01",
    "1\u00a0",
    "\x0b1",
    "1\x0c",
    "\ufeff1",
    "// c\n1",
    "/* c */ 1",
    "[1]]",
    "{}{}",
    "1,",
    "undefined",
    "[1e400.5]",
    "1e1.5",
    "1E",
    '"\\ud83d\\u"',
]


def refused() -> Iterator[str]:
    """Texts that `json.loads` refuses."""
    yield from REFUSED
    yield "9" * 4301
    yield "-" + "9" * 4301


def rounded() -> Iterator[float]:
    """Doubles to round: ties of the exact binary value, decimal near-ties and their neighbours, probabilities as f32, scores."""
    yield from (
        0.0,
        -0.0,
        1.0,
        0.5,
        0.03125,
        0.09375,
        0.99995,
        0.99994999,
        0.00005,
        0.00004999,
        1e-300,
        5e-324,
        0.12345,
        0.00015,
        254.99995,
        1 / 3,
        2 / 3,
    )
    yield from (k / 32 for k in range(0, 97))
    yield from (
        (2 * k + 1) / 2**e
        for e in (5, 6, 8, 12, 13, 16, 20)
        for k in range(0, 2 ** (e - 1), max(1, 2 ** (e - 1) // 40))
    )
    rng = random.Random("round")
    for _ in range(400):
        near = rng.randint(0, 20000) / 10000 + 0.00005
        yield from (near, math.nextafter(near, 0), math.nextafter(near, 9))
    for _ in range(600):
        yield struct.unpack("<f", struct.pack("<f", rng.random() ** rng.choice([1, 4, 12])))[0]
    for _ in range(300):
        yield rng.random() * rng.choice([1, 10, 254])


def rendered(texts: Iterator[str]) -> Iterator[list[str]]:
    """Pairs each text with what Python writes for the value it reads."""
    return ([text, dumps(json.loads(text))] for text in texts)


def main() -> None:
    """Writes all files."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    folder = release.FIXTURES / "golden/python"
    for name, texts in [("numbers", [*integers(), *floats()]), ("strings", [*strings()]), ("values", [*values()])]:
        pairs = list(rendered(iter(texts)))
        print(f"{name}: {len(pairs)} pairs")
        release.write_jsonl(folder / f"{name}.jsonl.gz", pairs)
    lines = []
    for text in refused():
        try:
            json.loads(text)
        except ValueError as error:
            lines.append([text, str(error)])
        else:
            raise SystemExit(f"{text!r} is read after all")
    print(f"refused: {len(lines)} texts")
    release.write_jsonl(folder / "refused.jsonl.gz", lines)
    pairs = [[struct.pack(">d", value).hex(), repr(round(value, 4))] for value in rounded()]
    print(f"round: {len(pairs)} pairs")
    release.write_jsonl(folder / "round.jsonl.gz", pairs)


if __name__ == "__main__":
    main()
