"""The mutations of a mutation run: each is one line, found once; what is for people is left alone."""

from __future__ import annotations

from tests.mutants.mutations import choose, compiles, mutations

SOURCE = '''
import logging
LIMIT = 5
log = logging.getLogger("x")

class Box:
    size: int = 3

    def put(self, count: int = 2) -> int:
        """Text with < and 1."""
        log.warning("%s < %s", count, 1)
        if not (count > 0 and self.size):
            raise ValueError(f"{count + 1} is wrong")
        self.size += count
        self.flush()
        return min(count, 7)
'''


def changes(source: str = SOURCE) -> set[tuple[str, str]]:
    return {(m.before.strip(), m.after.strip()) for m in mutations("box.py", source)}


def test_what_a_function_does_is_changed_and_nothing_else() -> None:
    condition = "if not (count > 0 and self.size):"
    assert changes() == {
        (condition, "if not (count >= 0 and self.size):"),
        (condition, "if not (count < 0 and self.size):"),
        (condition, "if not (count > 1 and self.size):"),
        (condition, "if not (count > 0 or self.size):"),
        (condition, "if (count > 0 and self.size):"),
        ('raise ValueError(f"{count + 1} is wrong")', "pass"),
        ("self.size += count", "pass"),
        ("self.flush()", "pass"),
        ("return min(count, 7)", "return None"),
        ("return min(count, 7)", "return max(count, 7)"),
        ("return min(count, 7)", "return min(count, 8)"),
    }


def test_each_changes_one_line_and_compiles() -> None:
    for mutation in mutations("box.py", SOURCE):
        mutated = mutation.apply(SOURCE)
        assert compiles(mutated)
        before, after = SOURCE.splitlines(), mutated.splitlines()
        assert [n + 1 for n, line in enumerate(before) if line != after[n]] == [mutation.line]


def test_texts_of_several_bytes_do_not_shift_it() -> None:
    source = 'def f(x):\n    return {"é": x < 1, "ü": x + 2}\n'
    assert ('return {"é": x < 1, "ü": x + 2}', 'return {"é": x < 1, "ü": x - 2}') in changes(source)


def test_the_choice_is_the_same_for_a_seed_and_takes_each_line_first() -> None:
    found = mutations("box.py", SOURCE)
    chosen = [choose(found, 5, seed, {"box.py": SOURCE}) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len({mutation.line for mutation in chosen[0]}) == 5
    assert len(choose(found, 99, 1, {"box.py": SOURCE})) == len(found)
