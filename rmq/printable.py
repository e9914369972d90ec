"""Text for terminals and logs. A stranger's text must not control the terminal, nor look like a line of ours.

Printable means Unicode's property: control characters (C0 and C1), line and paragraph separators, marks that
turn the direction of writing and lone surrogates are not printable.
"""

from __future__ import annotations

from typing import Final

KEPT: Final = "\n\t"
"""Characters that stay in a text of several lines."""


def printable(text: str) -> str:
    """`text` on one line, with characters that are not printable escaped as in Python: ``\n``, ``\x1b``,
    ``\u202e``."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """Same as `printable`, but line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter in KEPT else _escaped(letter) for letter in text)


def printable_json(text: str) -> str:
    """JSON with the same value, with all characters that are not printable escaped, but for line breaks
    between values.

    JSON itself requires this only for C0 characters.
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
