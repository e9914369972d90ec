"""Roles, and the file that gives them to people and programs.

users:
  - name: ada
    role: admin
    password: scrypt$16384$8$1$...     # `rmq dashboard --new-password` prints the line
tokens:
  - name: ci
    role: reader
    sha256: 9f86...                    # `rmq dashboard --new-token` prints the token and this line
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import pathlib
import secrets
from enum import IntEnum
from typing import Any, Final

from attrs import field, frozen

from rmq.errors import ConfigError


class Role(IntEnum):
    """The rights of a person in the dashboard. The cluster's own access control applies as well."""

    READER = 1
    """See everything; change nothing."""
    OPERATOR = 2
    """Also send, resend, reset offsets, create and change topics and groups."""
    ADMIN = 3
    """Also delete, and change settings of brokers and name servers, accounts and masters."""

    @property
    def label(self) -> str:
        """The name, as files and pages write it."""
        return self.name.lower()


@frozen
class User:
    """A person of the roles file. `password` is a hash."""

    name: str
    role: Role
    password: str = field(repr=False)


@frozen
class Token:
    """A program of the roles file. `sha256` is the hash of its token."""

    name: str
    role: Role
    sha256: str = field(repr=False)


@frozen
class Roles:
    """The content of the file."""

    users: dict[str, User] = field(factory=dict)
    tokens: tuple[Token, ...] = ()

    def user(self, name: str, password: str) -> User | None:
        """The user of that name, if the password is right. It takes the same time for an unknown name."""
        found = self.users.get(name)
        is_right = is_password(password, found.password if found else UNKNOWN)
        return found if found and is_right else None

    def token(self, text: str) -> Token | None:
        """The program that this token belongs to."""
        digest = token_hash(text)
        for token in self.tokens:
            if hmac.compare_digest(token.sha256, digest):
                return token
        return None


SCRYPT: Final = (16384, 8, 1)
"""Cost, block size and lanes of scrypt: 16 MiB and about 50 ms."""


def password_hash(password: str, salt: bytes | None = None) -> str:
    """The line of the roles file for a password."""
    salt = secrets.token_bytes(16) if salt is None else salt
    digest = _scrypt(password, salt, SCRYPT)
    numbers = "$".join(map(str, SCRYPT))
    return f"scrypt${numbers}${_text(salt)}${_text(digest)}"


def is_password(password: str, line: str) -> bool:
    """True if a password is the one of a line that `password_hash` made."""
    _, cost, block, lanes, salt, digest = line.split("$")
    made = _scrypt(password, _bytes(salt), (int(cost), int(block), int(lanes)))
    return hmac.compare_digest(made, _bytes(digest))


def token_hash(token: str) -> str:
    """The hash of a token, which is random: no salt is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _scrypt(password: str, salt: bytes, numbers: tuple[int, int, int]) -> bytes:
    cost, block, lanes = numbers
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=lanes, maxmem=64 << 20, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


UNKNOWN: Final = f"scrypt$16384$8$1${_text(bytes(16))}${_text(bytes(32))}"
"""Compared with, when there is no such user."""


def read_roles(path: pathlib.Path) -> Roles:
    """Read the file. Raises ConfigError, which shows no secret."""
    import yaml

    try:
        tree = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("roles", str(path), f"a readable file ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            "roles", str(path), f"YAML, wrong at line {mark.line + 1 if mark else '?'}"
        ) from None
    if not isinstance(tree, dict) or set(tree) - {"users", "tokens"}:
        raise ConfigError("roles", str(path), "a mapping of users and tokens")
    users = [_user(row, path) for row in _rows(tree, "users", path)]
    tokens = [_token(row, path) for row in _rows(tree, "tokens", path)]
    return Roles({user.name: user for user in users}, tuple(tokens))


def _rows(tree: dict[str, Any], name: str, path: pathlib.Path) -> list[Any]:
    rows = tree.get(name) or []
    if not isinstance(rows, list):
        raise ConfigError(f"roles.{name}", str(path), "a list")
    return rows


def _user(row: object, path: pathlib.Path) -> User:
    name, role, password = _fields(row, "password", path)
    try:
        is_password("", password)
    except (ValueError, TypeError):
        raise ConfigError(
            f"roles.users.{name}.password",
            "(not shown)",
            "a line of `rmq dashboard --new-password`",
            str(path),
        ) from None
    return User(name, role, password)


def _token(row: object, path: pathlib.Path) -> Token:
    name, role, digest = _fields(row, "sha256", path)
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ConfigError(
            f"roles.tokens.{name}.sha256", "(not shown)", "a line of `rmq dashboard --new-token`", str(path)
        )
    return Token(name, role, digest)


def _fields(row: object, secret: str, path: pathlib.Path) -> tuple[str, Role, str]:
    if not isinstance(row, dict) or set(row) != {"name", "role", secret}:
        raise ConfigError("roles", "(not shown)", f"rows of name, role and {secret}", str(path))
    name, role, value = row["name"], row["role"], row[secret]
    if not isinstance(name, str) or not name or not isinstance(value, str):
        raise ConfigError("roles", "(not shown)", f"a text as name and as {secret}", str(path))
    if role not in [one.label for one in Role]:
        raise ConfigError(f"roles.{name}.role", role, "admin, operator or reader", str(path))
    return name, Role[role.upper()], value
