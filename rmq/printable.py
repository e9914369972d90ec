"""Text for terminals and logs. Text that others wrote must steer neither, nor pose as our line.

What counts as printable is Unicode's: control characters (C0 and C1), line and paragraph separators, marks
that turn the direction of writing and lone surrogates are not.
"""

from __future__ import annotations

from typing import Final

KEPT: Final = "\n\t"
"""Left as they are where a text may have several lines."""


def printable(text: str) -> str:
    """`text` on one line, whatever is not printable escaped as in Python: ``\\n``, ``\\x1b``, ``\\u202e``."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """The same, but for line breaks and tabs, which stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter in KEPT else _escaped(letter) for letter in text)


def printable_json(text: str) -> str:
    """JSON with the same value and nothing in it that is not printable, but for line breaks between values.

    JSON itself wants only C0 characters escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _json_escaped(letter) for letter in text
    )


def counted(number: float, noun: str, form: str = "") -> str:
    """A number with its noun, which is in the plural unless the number is 1: ``1 topic``, ``2 entries``.
    `form` is the format of the number."""
    if number == 1:
        return f"{number:{form}} {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:{form}} {noun[:-1]}ies"
    return f"{number:{form}} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def _json_escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
