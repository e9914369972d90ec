"""plain_acl.yml: text -> accounts, and changes to it. Pure; nothing ever shows a secret.

A file is read as a whole or not at all. An error names the file, the line, the field and the remedy. It
quotes at most a permission or an address of the text, since an unreadable part may be a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import yaml
from attrs import evolve, field, frozen

from rmq.errors import RmqError
from rmq.message import RETRY_PREFIX
from rmq.protocol.auth.quota import parse_quota
from rmq.protocol.bodies import DataVersion
from rmq_acl import addresses, permissions
from rmq_acl.accounts import PROOFS, Account, Accounts
from rmq_acl.addresses import WhiteAddress

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
GLOBAL_WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
DATA_VERSION: Final = "dataVersion"
TOP_KEYS: Final = frozenset({GLOBAL_WHITE, ACCOUNTS, DATA_VERSION})
ACCOUNT_KEYS: Final = (
    ACCESS_KEY,
    SECRET_KEY,
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
    "proof",
    "quota",
)
KEY_LENGTH_MIN: Final = 7
"""Least letters of an access key and of a secret: RocketMQ requires more than six."""

_TEXT: Final = "tag:yaml.org,2002:str"

log = logging.getLogger("rmq.acl")

T = TypeVar("T")


class AclFileError(RmqError):
    """A file of accounts cannot be used; no part of it is in force."""

    hint = "correct the file at the line that is named"

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path, self.line, self.reason = path, line, reason


@frozen
class AclFile:
    """A file as read. `tree` is its whole content, for a change, and `data` its bytes; both hold secrets."""

    path: str
    accounts: tuple[Account, ...] = ()
    white: tuple[WhiteAddress, ...] = ()
    version: DataVersion = field(factory=DataVersion)
    tree: Mapping[str, Any] = field(factory=dict, repr=False)
    data: bytes = field(default=b"", repr=False)


def read(path: str, data: bytes) -> AclFile:
    """Read and check a whole file. Raises AclFileError. An empty file is a file without accounts."""
    root = _compose(path, data)
    if root is None:
        return AclFile(path, data=data)
    reader = _Reader(path)
    top = reader.mapping(root, "the file")
    reader.warn_unknown(top, TOP_KEYS)
    accounts = [reader.account(node) for node in reader.items(top.get(ACCOUNTS), ACCOUNTS)]
    reader.no_repeats(accounts)
    white = [reader.address(node, GLOBAL_WHITE) for node in reader.items(top.get(GLOBAL_WHITE), GLOBAL_WHITE)]
    version = reader.version(top.get(DATA_VERSION))
    owned = tuple(account for account, _ in accounts)
    return AclFile(path, owned, tuple(white), version, _tree(root), data)


def merge(files: Sequence[AclFile]) -> Accounts:
    """The accounts of all files together. Raises AclFileError when two have the same name."""
    table: dict[str, Account] = {}
    owner: dict[str, str] = {}
    for file in files:
        for account in file.accounts:
            name = account.access_key
            if name in table:
                raise AclFileError(file.path, 0, f"account {name!r} is in {owner[name]}, too; keep one entry")
            table[name], owner[name] = account, file.path
    return Accounts(table, tuple(address for file in files for address in file.white))


def write(tree: Mapping[str, Any]) -> bytes:
    """The file's new content. Comments of the old one are lost, unknown keys are kept."""
    text: str = yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.encode()


def _compose(path: str, data: bytes) -> yaml.Node | None:
    try:
        return yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 0 if mark is None else mark.line + 1
        # `from None`, and no word of the error's own: it quotes the line, which may hold a secret.
        raise AclFileError(path, line, "not YAML: look at indentation, colons and quotes here") from None


class _Reader:
    """Reads the nodes of one file; each method raises AclFileError."""

    def __init__(self, path: str) -> None:
        self.path = path

    def wrong(self, node: yaml.Node, reason: str) -> AclFileError:
        return AclFileError(self.path, node.start_mark.line + 1, reason)

    def mapping(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(node, f"{what}: expected `key: value` lines")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or name in found:
                raise self.wrong(
                    key, f"{what}: " + ("a key must be a word" if name is None else f"{name} twice")
                )
            found[name] = value
        return found

    def items(self, node: yaml.Node | None, what: str) -> list[yaml.Node]:
        if node is None or _is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self.wrong(node, f"{what}: expected a list, each item after a dash")
        return list(node.value)

    def text(self, node: yaml.Node | None, what: str) -> str:
        """The text in its written form, so that 0123456 is not read as a number."""
        if node is None or _is_null(node):
            return ""
        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(node, f"{what}: expected one word")
        return str(node.value)

    def parsed(self, node: yaml.Node | None, what: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(self.text(node, what))
        except ValueError as error:
            assert node is not None  # an empty text is always read
            raise self.wrong(node, f"{what}: expected {error}") from None

    def address(self, node: yaml.Node | None, what: str) -> WhiteAddress:
        return self.parsed(node, what, addresses.parse)

    def account(self, node: yaml.Node) -> tuple[Account, yaml.Node]:
        given = self.mapping(node, "an account")
        self.warn_unknown(given, frozenset(ACCOUNT_KEYS))
        account = Account(
            access_key=self._key(node, given, ACCESS_KEY),
            secret_key=self._key(node, given, SECRET_KEY),
            admin=self.parsed(given.get("admin"), "admin", _flag),
            white=self.address(given.get("whiteRemoteAddress"), "whiteRemoteAddress"),
            default_topic=self.parsed(given.get("defaultTopicPerm"), "defaultTopicPerm", permissions.parse),
            default_group=self.parsed(given.get("defaultGroupPerm"), "defaultGroupPerm", permissions.parse),
            proof=self.parsed(given.get("proof"), "proof", proof_mode),
            quota_text=self.parsed(given.get("quota"), "quota", quota_text),
        )
        topics = dict(self._single(given.get("topicPerms"), "topicPerms"))
        groups = {_group(name): owned for name, owned in self._single(given.get("groupPerms"), "groupPerms")}
        groups |= {_group(name): owned for name, owned in topics.items() if name.startswith(RETRY_PREFIX)}
        return evolve(account, topics=topics, groups=groups), node

    def _key(self, node: yaml.Node, given: Mapping[str, yaml.Node], name: str) -> str:
        text = self.text(given.get(name), name)
        if len(text) < KEY_LENGTH_MIN:
            have = "is missing" if not text else f"has {len(text)} characters"
            reason = f"{name} of an account {have}; it must have {KEY_LENGTH_MIN} or more"
            raise self.wrong(given.get(name) or node, reason)
        return text

    def _single(self, node: yaml.Node | None, what: str) -> Iterator[tuple[str, int]]:
        for item in self.items(node, what):
            name, permission = self.parsed(item, what, name_and_permission)
            yield name, permission

    def no_repeats(self, accounts: Sequence[tuple[Account, yaml.Node]]) -> None:
        seen: set[str] = set()
        for account, node in accounts:
            if account.access_key in seen:
                raise self.wrong(node, f"account {account.access_key!r} is listed twice")
            seen.add(account.access_key)

    def version(self, node: yaml.Node | None) -> DataVersion:
        for item in self.items(node, DATA_VERSION)[:1]:
            given = self.mapping(item, DATA_VERSION)
            numbers = [self.parsed(given.get(name), name, _number) for name in ("timestamp", "counter")]
            return DataVersion(*numbers)
        return DataVersion()

    def warn_unknown(self, given: Mapping[str, yaml.Node], known: frozenset[str]) -> None:
        for name in given.keys() - known:
            line = given[name].start_mark.line + 1
            log.warning("%s:%d: %s is unknown and has no effect", self.path, line, name[:60])


def name_and_permission(text: str) -> tuple[str, int]:
    """Read `name=permission`. Raises ValueError."""
    name, mark, permission = (part.strip() for part in text.partition("="))
    if not mark or not name or not permission:
        raise ValueError("name=permission, such as Orders=PUB")
    return name, permissions.parse(permission)


def proof_mode(text: str) -> str:
    """Read `proof`; empty leaves it to the server. Raises ValueError."""
    if text and text not in PROOFS:
        raise ValueError(f"one of {', '.join(PROOFS)}, not {text[:40]!r}")
    return text


def quota_text(text: str) -> str:
    """Check `quota`; empty is no limit. Raises ValueError."""
    parse_quota(text)
    return text


def _group(name: str) -> str:
    return name.removeprefix(RETRY_PREFIX)


def _flag(text: str) -> bool:
    if text.lower() not in ("", "true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _number(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError("a whole number")
    return int(text or 0)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and str(node.tag).endswith(":null")


def _tree(root: yaml.Node) -> dict[str, Any]:
    """The content as plain values; names and secrets of accounts keep their spelling."""
    for node in _nodes(root, ACCOUNTS):
        for account in node.value:
            for key in (ACCESS_KEY, SECRET_KEY):
                for scalar in _nodes(account, key):
                    scalar.tag = _TEXT
    tree: dict[str, Any] = yaml.constructor.SafeConstructor().construct_document(root)
    return tree


def _nodes(mapping: yaml.Node, name: str) -> Iterator[yaml.Node]:
    """The value under a key, unless it is empty."""
    for key, value in mapping.value:
        if key.value == name and not _is_null(value):
            yield value
