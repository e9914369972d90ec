"""Settings: frozen attrs classes whose fields have default, unit and help, and the readers of settings.

    @frozen
    class NamesrvConfig:
        listen_port: int = setting(9876, help="Port that clients connect to", validator=between(0, 65535))

    config = load(NamesrvConfig, file="namesrv.properties", arguments={"listen_port": "0"})

Order: defaults, the file, environment variables `RMQ_<NAME>`, arguments; the last wins. A file whose name
ends in `.toml` is TOML; any other is a Java properties file, so that an existing broker.conf works unchanged.
Keys may be Java's (`listenPort`) or ours (`listen_port`). Unknown keys are listed once in a warning; a wrong
value is a ConfigError with the key, the value, the expected form and its source.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import attrs
from attrs import Attribute, frozen

from rmq.errors import ConfigError

log = logging.getLogger("rmq.config")

C = TypeVar("C")
A = TypeVar("A")
B = TypeVar("B")

Validator = Callable[[Any, "Attribute[Any]", Any], Any]

# Names whose camelCase form does not follow the rule.
ALIASES = {"broker_ip1": "brokerIP1", "broker_ip2": "brokerIP2", "check_crc_on_recover": "checkCRCOnRecover"}

INT_MAX = 2**31 - 1
"""Highest value of RocketMQ's integer settings, with few exceptions."""

FOLDER, FILE = "folder", "file"

SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def setting(
    default: Any,
    *,
    help: str,
    unit: str | None = None,
    java: str | None = None,
    runtime: bool = False,
    most: int = INT_MAX,
    validator: Validator | Sequence[Validator] | None = None,
    important: bool = False,
    secret: bool = False,
    writes: str = "",
) -> Any:
    """A field of a configuration class.

    `unit` is shown in the reference ("ms", "bytes" …); a field in bytes also takes sizes such as 64k, 4m, 1g.
    `java` is RocketMQ's key, if it differs from the camelCase form of the name. `runtime`: the value may be
    replaced while the service runs, a number by at most `most`. `important`: `-m` prints the setting.
    `secret`: the value is never shown. `writes`: the value is the path of a FOLDER or FILE that the server
    writes, and a program checks the path at its start.
    """
    checks = validator if validator is None or callable(validator) else attrs.validators.and_(*validator)
    facts = {
        "help": help,
        "unit": unit,
        "java": java,
        "runtime": runtime,
        "most": most,
        "important": important,
        "secret": secret,
        "writes": writes,
    }
    return attrs.field(default=default, validator=checks, metadata=facts, repr=not secret)


def again(cls: type[Any], name: str, default: Any, *, help: str | None = None) -> Any:
    """The setting `name` of the base class `cls`, in a class derived from it, with another default. `help`
    replaces the text of the base."""
    known: Any = attrs.fields_dict(cls)[name]
    facts = known.metadata if help is None else {**known.metadata, "help": help}
    return attrs.field(default=default, validator=known.validator, metadata=facts, repr=known.repr)


def between(low: float, high: float) -> Validator:
    """A validator: the number lies in low..high, both included."""
    return _check(lambda value: _is_number(value) and low <= value <= high, f"a number from {low} to {high}")


def at_least(low: float) -> Validator:
    """A validator: the number is not below `low`."""
    return _check(lambda value: _is_number(value) and value >= low, f"a number of at least {low}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def one_of(*choices: object) -> Validator:
    """A validator: the value is one of the choices."""
    return _check(lambda value: value in choices, "one of " + ", ".join(map(str, choices)))


def each_of(*choices: str) -> Validator:
    """A validator: each of the values is one of the choices."""
    return _check(lambda values: set(values) <= {*choices}, "some of " + ", ".join(choices))


def _check(holds: Callable[[Any], bool], expected: str) -> Validator:
    def validate(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not holds(value):  # a caller in Python knows the setting by its field name
            raise ConfigError(java_key(attribute) if instance is None else attribute.name, value, expected)

    return validate


# ---- names ----


def java_key(field: str | Attribute[Any]) -> str:
    """RocketMQ's key of a field: `listen_port` -> `listenPort`. A field's own `java` text comes first."""
    if not isinstance(field, str):
        return field.metadata.get("java") or java_key(field.name)
    head, *rest = field.split("_")
    return ALIASES.get(field) or head + "".join(part[:1].upper() + part[1:] for part in rest)


def _fields(cls: type[Any]) -> dict[str, Attribute[Any]]:
    """Java key and Python name -> field."""
    names: dict[str, Attribute[Any]] = {}
    for field in attrs.fields(cls):
        if field.init:
            names[field.name] = names[java_key(field)] = field
    return names


def _types(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


# ---- text -> value, value -> text ----


def from_text(kind: Any, text: str, *, unit: str | None = None) -> Any:
    """Read a value. Raises ValueError with the expected form.

    Kinds: int, float, bool, str, an Enum (by the name of its member), tuple[str, ...] (comma separated) and
    any of these with `| None` (empty text is None).
    """
    text = text.strip()
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
        if not text:
            return None
    if typing.get_origin(kind) is tuple:
        return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)
    if kind is str:
        return text
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member(kind, text)
    return _READERS[kind](text, unit)


def _member(kind: type[enum.Enum], text: str) -> enum.Enum:
    try:
        return kind[text]
    except KeyError:
        raise ValueError("one of " + ", ".join(kind.__members__)) from None


def _read_bool(text: str, unit: str | None) -> bool:
    # Java reads anything but "true" as false, so that a typing mistake switches a feature off unseen.
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _read_int(text: str, unit: str | None) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        return int(text)
    if unit == "bytes":
        match = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?)(i?b)?", text, re.IGNORECASE)
        if match:
            return int(match[1]) * SIZES[match[2].lower()]
        raise ValueError("a number of bytes, or a size such as 64k, 4m or 1g")
    raise ValueError("a whole number" + (f" of {unit}" if unit else ""))


def _read_float(text: str, unit: str | None) -> float:
    if re.fullmatch(r"[+-]?[0-9]{0,15}\.?[0-9]{1,15}", text):
        return float(text)
    raise ValueError("a number")


_READERS: dict[Any, Callable[[str, str | None], Any]] = {bool: _read_bool, int: _read_int, float: _read_float}


def text_of(value: object) -> str:
    """The text that `from_text` reads back: true/false, the name of an Enum member, a, b for a tuple."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


# ---- files ----


@frozen
class Entry:
    """A key with its value; `source` says where, for error texts."""

    key: str
    value: Any
    source: str


def read_file(path: str | os.PathLike[str], key: str = "configuration file") -> list[Entry]:
    """The entries of a properties or TOML file, in order. Raises ConfigError when it is not readable, with
    `key`, the name of the setting that holds the path."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        wanted = f"a readable file ({error.strerror}); correct the path, or create the file"
        raise ConfigError(key, str(path), wanted) from error
    if path.suffix == ".toml":
        return _read_toml(path, data)
    pairs = _logical_lines(_text(data))
    return [Entry(*_split(line), source=f"{path}:{number}") for number, line in pairs if line]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # Java's encoding of a properties file


def _read_toml(path: Path, data: bytes) -> list[Entry]:
    import tomllib

    try:
        tree = tomllib.loads(_text(data))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("configuration file", str(path), f"TOML ({error})") from error
    return [Entry(key, value, str(path)) for key, value in _leaves(tree)]


def _leaves(tree: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The keys and values of a TOML table, without the names of tables: tables only group, so [store]
    flushDiskType = "SYNC_FLUSH" is the key flushDiskType."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield key, value


def parse_properties(text: str) -> dict[str, str]:
    """Read Java properties text: # and ! comments, `=`, `:` or blanks after a key, continuations, escapes."""
    return dict(_split(line) for _, line in _logical_lines(text) if line)


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """(number of its first line, line) with continuation lines joined and comments emptied."""
    lines = iter(enumerate(re.split(r"\r\n|\r|\n", text), 1))
    for number, raw in lines:
        line = raw.lstrip(" \t\f")
        if line[:1] in ("#", "!"):
            continue
        while _continues(line):
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        yield number, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _split(line: str) -> tuple[str, str]:
    match = _KEY.match(line)
    assert match is not None  # every part of the pattern may be empty
    return _unescape(match[1]), _unescape(match[2])


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescape_one, text)
    # Two escapes of a surrogate pair make one character.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape_one(match: re.Match[str]) -> str:
    letter = match[1]
    return chr(int(letter[1:], 16)) if len(letter) == 5 else _LETTERS.get(letter, letter)


def properties_text(pairs: Mapping[str, str]) -> str:
    """Java properties text, one `key=value` a line; ASCII only, so that every reader gets the same."""
    return "".join(f"{_escape(key, '=: ')}={_escape(value, '')}\n" for key, value in pairs.items())


_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def _escape(text: str, special: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    parts = []
    for index in range(0, len(units), 2):
        code = int.from_bytes(units[index : index + 2], "big")
        letter = chr(code)
        if letter in _ESCAPES:
            parts.append(_ESCAPES[letter])
        elif not 32 <= code < 127:
            parts.append(f"\\u{code:04X}")
        elif letter in special or (index == 0 and letter in " #!"):
            parts.append("\\" + letter)
        else:
            parts.append(letter)
    return "".join(parts)


# ---- loading ----


def load(
    cls: type[C],
    file: str | os.PathLike[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> C:
    """Read one configuration class; see `load_all`."""
    return typing.cast(C, load_all((cls,), file, arguments, environment)[0])


@overload
def load_all(
    classes: tuple[type[A], type[B]],
    file: str | os.PathLike[str] | None = ...,
    arguments: Mapping[str, Any] | None = ...,
    environment: Mapping[str, str] | None = ...,
) -> tuple[A, B]: ...
@overload
def load_all(
    classes: Sequence[type[Any]],
    file: str | os.PathLike[str] | None = ...,
    arguments: Mapping[str, Any] | None = ...,
    environment: Mapping[str, str] | None = ...,
    kept: str | os.PathLike[str] | None = ...,
) -> tuple[Any, ...]: ...
def load_all(
    classes: Sequence[type[Any]],
    file: str | os.PathLike[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    kept: str | os.PathLike[str] | None = None,
) -> tuple[Any, ...]:
    """Read several classes from a file, the environment (default: this process's) and arguments.

    A key that two classes share goes to both. `kept` is a second file, which comes after the first. Arguments
    whose value is None count as not given. Raises ConfigError for the first wrong value.
    """
    entries = read_file(file) if file is not None else []
    entries += read_file(kept, "configStorePath") if kept is not None else []
    entries += _variables(classes, os.environ if environment is None else environment)
    given = (arguments or {}).items()
    entries += [Entry(key, value, "the command line") for key, value in given if value is not None]
    known = {key for cls in classes for key in _fields(cls)}
    unknown = [entry for entry in entries if entry.key not in known]
    if unknown:
        text = "settings that are not known here have no effect, unless a plug-in reads them: %s"
        log.warning(text, _listed(unknown))
    return tuple(_build(cls, entries) for cls in classes)


def from_options(options: Iterable[str]) -> dict[str, str]:
    """The settings of `--set KEY=VALUE` options, the last of a key counts. Raises ConfigError."""
    given: dict[str, str] = {}
    for option in options:
        key, mark, value = option.partition("=")
        if not mark:
            raise ConfigError("--set", option, "KEY=VALUE")
        given[key.strip()] = value
    return given


def _variables(classes: Sequence[type[Any]], environment: Mapping[str, str]) -> list[Entry]:
    entries = []
    for name in dict.fromkeys(field.name for cls in classes for field in _fields(cls).values()):
        variable = f"RMQ_{name.upper()}"
        if variable in environment:
            entries.append(Entry(name, environment[variable], f"the environment variable {variable}"))
    return entries


def from_environment(cls: type[C], environment: Mapping[str, str], given: Mapping[str, Any]) -> C:
    """A configuration class from the `given` values, by field names, and from environment variables for the
    rest. Raises ConfigError with the variable, TypeError for an unknown field."""
    known, variables = _fields(cls), _variables((cls,), environment)
    entries = {known[entry.key].name: entry for entry in variables if entry.key not in given}
    try:
        return cls(**_values(cls, entries.values()), **given)
    except ConfigError as error:  # of two settings that do not fit together
        entry = next((one for name, one in entries.items() if error.key == name), None)
        if entry is None or error.source:
            raise
        raise ConfigError(error.key, error.value, error.expected, entry.source) from None


def _listed(entries: Iterable[Entry]) -> str:
    return ", ".join(dict.fromkeys(f"{entry.key} ({entry.source})" for entry in entries))


def _build(cls: type[C], entries: Iterable[Entry]) -> C:
    return cls(**_values(cls, entries))


def _values(cls: type[Any], entries: Iterable[Entry]) -> dict[str, Any]:
    fields = _fields(cls)
    values: dict[str, Any] = {}
    for entry in entries:
        field = fields.get(entry.key)
        if field is not None:
            values[field.name] = _value(cls, field, entry.value, entry.source)
    return values


def _value(cls: type[Any], field: Attribute[Any], value: Any, source: str) -> Any:
    """Convert and check one value. Raises ConfigError that names its source."""
    try:
        result = from_text(_types(cls)[field.name], _plain_text(value), unit=field.metadata.get("unit"))
        if field.validator is not None:
            field.validator(None, field, result)
    except ConfigError as error:
        raise _wrong(field, value, error.expected, source) from None
    except (ValueError, TypeError) as error:
        raise _wrong(field, value, str(error), source) from None
    return result


def _plain_text(value: Any) -> str:
    """TOML and arguments bring typed values; a single function checks all."""
    return ",".join(map(str, value)) if isinstance(value, list) else text_of(value)


def _wrong(field: Attribute[Any], value: Any, expected: str, source: str) -> ConfigError:
    shown = "***" if field.metadata.get("secret") else value
    return ConfigError(java_key(field), shown, expected, source)


def evolve(config: C, changes: Mapping[str, str]) -> C:
    """A copy with the values of `changes` (Java key or name -> text), for a change at run time.

    Raises ConfigError for an unknown key, for a key given twice, for a setting that needs a restart and for a
    wrong value. A change of a running service is restricted more than the file: numbers have an upper bound.
    """
    cls = type(config)
    values: dict[str, Any] = {}
    for key, text in changes.items():
        field = _fields(cls).get(key)
        if field is None:
            raise ConfigError(key, text, "a setting that this service has; this one is not known")
        if not field.metadata.get("runtime"):
            expected = "no change while running: write it to the configuration file and restart"
            raise ConfigError(java_key(field), text, expected)
        if field.name in values:
            raise ConfigError(java_key(field), text, f"one value, not two, by the names {_names(field)}")
        value = values[field.name] = _value(cls, field, text, "the request")
        if isinstance(value, int) and value > field.metadata.get("most", INT_MAX):
            raise _wrong(field, text, f"at most {field.metadata['most']} in a running service", "the request")
    return typing.cast(C, attrs.evolve(typing.cast(Any, config), **values))


def with_changes(now: C, requested: C) -> C:
    """`now` with those changes of `requested` that are allowed at run time. The log names the changed
    settings, and the settings that need a restart."""
    values, kept = {}, []
    for field in attrs.fields(typing.cast(Any, type(now))):
        before, after = getattr(now, field.name), getattr(requested, field.name)
        if not field.init or before == after:
            continue
        if field.metadata.get("runtime"):
            values[field.name] = after
            log.info("%s is %s now, and was %s", java_key(field), after, before)
        else:
            kept.append(java_key(field))
    if kept:
        log.warning("these settings differ from the file's and need a restart: %s", ", ".join(kept))
    return typing.cast(C, attrs.evolve(typing.cast(Any, now), **values))


def canonical(changes: Mapping[str, str], *classes: type[Any]) -> dict[str, str]:
    """The same changes under RocketMQ's keys, whichever of its two names a setting has in `changes`."""
    keys = {name: java_key(field) for cls in classes for name, field in _fields(cls).items()}
    return {keys.get(key, key): text for key, text in changes.items()}


def spellings(key: str) -> tuple[str, str]:
    """The names that a setting may have in a file: RocketMQ's key, and the field's name."""
    ours = {java: name for name, java in ALIASES.items()}
    return key, ours.get(key) or re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)


def _names(field: Attribute[Any]) -> str:
    return f"{java_key(field)} and {field.name}"


def knows(cls: type[Any], key: str) -> bool:
    """True if the class has a field of this Java key or name."""
    return key in _fields(cls)


# ---- showing ----


@frozen
class Description:
    """One row of the reference page."""

    key: str
    name: str
    default: str
    unit: str | None
    help: str
    runtime: bool
    important: bool


def describe(cls: type[Any]) -> list[Description]:
    """The fields of a configuration class in the order of their definition."""
    return [
        Description(
            key=java_key(field),
            name=field.name,
            default=text_of(_default(cls, field)),
            unit=field.metadata.get("unit"),
            help=field.metadata.get("help", ""),
            runtime=bool(field.metadata.get("runtime")),
            important=bool(field.metadata.get("important")),
        )
        for field in attrs.fields(cls)
        if field.init
    ]


def _default(cls: type[Any], field: Attribute[Any]) -> Any:
    default: Any = field.default
    if isinstance(default, attrs.Factory) and default.takes_self:  # type: ignore[arg-type]
        return getattr(cls(), field.name)  # the default follows from another setting
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def dump_properties(*configs: Any, important: bool = False) -> str:
    """The values as a properties file that `load` reads back; secrets are left out.

    `important` leaves only the fields marked so, as Java's option -m does.
    """
    pairs: dict[str, str] = {}
    for config in configs:
        for field in attrs.fields(type(config)):
            hidden = field.metadata.get("secret") or (important and not field.metadata.get("important"))
            if field.init and not hidden:
                pairs[java_key(field)] = text_of(getattr(config, field.name))
    return properties_text(pairs)


# ---- addresses ----


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_ADDRESS = re.compile(r"((?:tls|wss?|tcp)://)?(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def parse_addresses(text: str, key: str = "namesrvAddr") -> list[str]:
    """Split "host:port;host:port" (also with commas) into addresses, each once; empty text gives none.

    A scheme tls://, ws:// or wss:// before the host is kept; an IPv6 host stands in brackets. Raises
    ConfigError.
    """
    found = [part.strip() for part in re.split("[;,]", text)]
    for address in filter(None, found):
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ConfigError(key, address, "host:port, several separated by ;")
    return list(dict.fromkeys(filter(None, found)))
