"""How many topics or groups accounts have had made by using them; those of administrators do not count."""

from __future__ import annotations

from collections import Counter


class Quota:
    """Names that were made on first use since the start, and by which account. Nobody's are not counted."""

    def __init__(self) -> None:
        self._makers: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def made(self, name: str, account: str) -> None:
        """An account has had this made."""
        if account:
            self._makers[name] = account
            self._counts[account] += 1

    def gone(self, name: str) -> None:
        """It is there no more, or is an administrator's now."""
        account = self._makers.pop(name, None)
        if account is not None:
            self._counts[account] -= 1
            if not self._counts[account]:
                del self._counts[account]

    def count(self, account: str) -> int:
        """How many of them an account has."""
        return self._counts.get(account, 0)
