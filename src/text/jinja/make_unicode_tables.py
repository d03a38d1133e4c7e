# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_tables.inc: the character properties and case mappings that Python's str methods use.

Run with the Python whose behaviour is wanted: python3 make_unicode_tables.py > unicode_tables.inc
"""

import sys
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(predicate):
    out = []
    for c in CODE_POINTS:
        if not predicate(chr(c)):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def emit_ranges(name, predicate):
    rows = ranges(predicate)
    print(f"constexpr CodeRange {name}[] = {{")
    emit_rows([f"{{0x{a:X},0x{b:X}}}" for a, b in rows])
    print("};")


def emit_rows(cells):
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 118:
            print(line)
            line = "   "
        line += " " + cell + ","
    print(line)


def emit_mapping(name, function):
    """One-to-one mappings as runs {first, last, stride, delta}; the others as {code point, up to three results}."""
    simple, special = [], []
    for c in CODE_POINTS:
        mapped = function(chr(c))
        if mapped == chr(c):
            continue
        if len(mapped) == 1:
            simple.append((c, ord(mapped) - c))
        else:
            special.append((c, [ord(x) for x in mapped]))
    runs = []
    for c, delta in simple:
        if runs:
            first, last, stride, d = runs[-1]
            if d == delta and (c - last == stride or (first == last and c - last in (1, 2))):
                runs[-1] = (first, c, c - last, d)
                continue
        runs.append((c, c, 1, delta))
    print(f"constexpr CaseRun {name}[] = {{")
    emit_rows([f"{{0x{a:X},0x{b:X},{s},{d}}}" for a, b, s, d in runs])
    print("};")
    print(f"constexpr CaseSpecial {name}Special[] = {{")
    emit_rows(["{0x%X,{%s}}" % (c, ",".join("0x%X" % x for x in xs)) for c, xs in special])
    print("};")


def main():
    version = ".".join(str(x) for x in sys.version_info[:2])
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Unicode {unicodedata.unidata_version} as Python {version} sees it; written by make_unicode_tables.py.")
    emit_ranges("kAlpha", str.isalpha)
    emit_ranges("kDecimal", str.isdecimal)
    emit_ranges("kDigit", str.isdigit)
    emit_ranges("kNumeric", str.isnumeric)
    emit_ranges("kUpper", str.isupper)
    emit_ranges("kLower", str.islower)
    emit_ranges("kTitle", lambda c: c.istitle() and not c.isupper())
    emit_ranges("kUnprintable", lambda c: not c.isprintable())
    emit_ranges("kIdStart", str.isidentifier)
    emit_ranges("kIdContinue", lambda c: ("a" + c).isidentifier())
    emit_ranges("kCased", lambda c: (c + "a").title().endswith("a"))
    emit_ranges("kCaseIgnorable", lambda c: ("A" + c + "\u03a3").lower()[-1] == "\u03c2" and (c + "\u03a3").lower()[-1] != "\u03c2")
    emit_mapping("kToUpper", str.upper)
    emit_mapping("kToLower", str.lower)
    emit_mapping("kToTitle", lambda c: c.title())
    emit_mapping("kToFolded", str.casefold)


main()
