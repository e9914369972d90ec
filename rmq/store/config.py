"""StoreConfig: RocketMQ's MessageStoreConfig keys that the store and its users honour, and the delay level
table.
"""

from __future__ import annotations

import enum
import os
import re
from typing import Any

from attrs import Attribute, Factory, frozen

from rmq.config import FOLDER, at_least, between, java_key, setting
from rmq.errors import ConfigError


class FlushDiskType(enum.Enum):
    """The time at which a message is on the medium: before or after its acknowledgement."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """Role of a broker in its set."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class DivergedLog(enum.Enum):
    """Reaction of a slave to a log that does not continue its master's."""

    stop = "stop"
    aside = "aside"


class Durability(enum.Enum):
    """The failures that an acknowledged message survives: a name for a flush type and a role."""

    memory = "memory"
    disk = "disk"
    replicated = "replicated"


def _flush_type(config: StoreConfig) -> FlushDiskType:
    """The settings that `durability` implies, unless they are given themselves."""
    on_disk = config.durability in (Durability.disk, Durability.replicated)
    return FlushDiskType.SYNC_FLUSH if on_disk else FlushDiskType.ASYNC_FLUSH


def _role(config: StoreConfig) -> BrokerRole:
    replicated = config.durability is Durability.replicated
    return BrokerRole.SYNC_MASTER if replicated else BrokerRole.ASYNC_MASTER


DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_table(text: str) -> dict[int, int]:
    """`messageDelayLevel` -> {level: delay in ms}; levels count from 1. Raises ValueError for text that
    Java refuses too.
    """
    table = {}
    for level, part in enumerate((text.rstrip(" ") or text).split(" "), 1):
        match = re.fullmatch(r"([0-9]{1,18})([smhd])", part)
        if match is None:
            raise ValueError(f"{part!r} is not a number followed by s, m, h or d")
        table[level] = int(match[1]) * _UNITS_MS[match[2]]
    return table


def _delay_levels(instance: Any, field: Attribute[Any], value: str) -> None:
    try:
        delay_table(value)
    except ValueError as error:
        expected = f"delays such as {DELAY_LEVELS[:10]!r}, separated by single blanks; {error}"
        raise ConfigError(java_key(field), value, expected) from None


def _hours(instance: Any, field: Attribute[Any], value: str) -> None:
    if not all(re.fullmatch(r"[0-9]{1,2}", hour) and int(hour) < 24 for hour in value.split(";")):
        raise ConfigError(java_key(field), value, "hours of the day, 00 to 23, separated by ;")


def _home_store() -> str:
    return os.path.join(os.path.expanduser("~"), "store")


_LIMIT = 0x7FFFFFFF  # file sizes and counts are 32-bit numbers in the files


@frozen(kw_only=True)
class StoreConfig:
    """Settings of the store. Defaults are RocketMQ's; names are its keys in snake_case."""

    store_path_root_dir: str = setting(
        _home_store(), help="Folder of the store, of a single broker", important=True, writes=FOLDER
    )
    store_path_commit_log: str | None = setting(
        None, help="Folder of the commit log when it is not <root>/commitlog", important=True, writes=FOLDER
    )
    mapped_file_size_commit_log: int = setting(
        1 << 30, help="Size of one commit log file", unit="bytes", validator=between(1024, _LIMIT)
    )
    mapped_file_size_consume_queue: int = setting(
        6_000_000,
        help="Size of one consume queue file; rounded up to whole units of 20 bytes",
        unit="bytes",
        validator=between(20, _LIMIT - 20),
    )
    durability: Durability | None = setting(
        None,
        help="memory (ASYNC_FLUSH), disk (SYNC_FLUSH) or replicated (SYNC_FLUSH and SYNC_MASTER): sets"
        " flushDiskType and brokerRole, which may be omitted and must not contradict",
        important=True,
    )
    flush_disk_type: FlushDiskType = setting(
        Factory(_flush_type, takes_self=True),
        help="SYNC_FLUSH answers a producer when its message is on the medium",
        important=True,
    )
    flush_interval_commit_log: int = setting(
        500,
        help="Time between two flushes of the commit log",
        unit="ms",
        important=True,
        validator=at_least(1),
    )
    flush_commit_log_timed: bool = setting(
        True, help="Flush by the interval only, not when pages gather", important=True
    )
    transient_store_pool_enable: bool = setting(
        False,
        help="Accepted for compatibility: messages always gather in memory and are written, many at a time,"
        " before they are acknowledged or flushed",
    )
    flush_interval_consume_queue: int = setting(
        1000,
        help="Time between two writes of gathered queue units to their files",
        unit="ms",
        validator=at_least(1),
    )
    flush_consume_queue_thorough_interval: int = setting(
        60_000,
        help="Time between two flushes of the queue files and the checkpoint",
        unit="ms",
        validator=at_least(1),
    )
    sync_flush_timeout: int = setting(
        5000, help="How long a producer waits for SYNC_FLUSH", unit="ms", validator=at_least(1)
    )
    slave_timeout: int = setting(
        3000, help="How long a producer waits for a slave under SYNC_MASTER", unit="ms", validator=at_least(1)
    )
    clean_resource_interval: int = setting(
        10_000, help="Time between two searches for expired files", unit="ms", validator=at_least(1)
    )
    delete_when: str = setting(
        "04",
        help="Hours of the day at which expired files are deleted, separated by ;",
        runtime=True,
        important=True,
        validator=_hours,
    )
    file_reserved_time: int = setting(
        72,
        help="Age at which a commit log file may be deleted",
        unit="hours",
        runtime=True,
        most=876_000,
        important=True,
        validator=at_least(0),
    )
    file_reserved_bytes: int = setting(
        0,
        help="Size of the log beyond which its oldest files are deleted, at any hour and whatever their age,"
        " read or not; 0: no limit. RocketMQ has no such setting",
        unit="bytes",
        runtime=True,
        most=1 << 60,
        important=True,
        validator=at_least(0),
    )
    disk_max_used_space_ratio: int = setting(
        75,
        help="Used space from which expired files are deleted at any hour",
        unit="%",
        runtime=True,
        validator=between(10, 95),
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        help="Used space from which the oldest files are deleted at any age",
        unit="%",
        runtime=True,
        validator=between(10, 100),
    )
    disk_space_warning_level_ratio: int = setting(
        90, help="Used space from which sends are refused", unit="%", runtime=True, validator=between(10, 100)
    )
    disk_min_free_bytes: int = setting(
        0,
        help="Free space below which sends are refused, and below twice of it the oldest files go; 0: off",
        unit="bytes",
        runtime=True,
        most=1 << 50,
        validator=at_least(0),
    )
    clean_file_forcibly_enable: bool = setting(
        True, help="Allow files to go before their age when space is short", runtime=True, important=True
    )
    max_message_size: int = setting(
        4 << 20, help="Largest body", unit="bytes", runtime=True, validator=between(1, _LIMIT)
    )
    check_crc_on_recover: bool = setting(True, help="Check the body of each record that recovery scans")
    truncate_damaged_log: bool = setting(
        False,
        help="Cut the log at a damaged record, losing later good records, instead of not starting",
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        1 << 20,
        help="Most bytes of one pull",
        unit="bytes",
        runtime=True,
        most=8 << 20,
        important=True,
        validator=at_least(1),
    )
    max_transfer_count_on_message_in_memory: int = setting(
        1024,
        help="Most messages of one pull",
        runtime=True,
        most=65_536,
        important=True,
        validator=at_least(1),
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        512 << 10,
        help="Most bytes of one pull of old messages",
        unit="bytes",
        runtime=True,
        most=8 << 20,
        important=True,
        validator=at_least(1),
    )
    max_transfer_count_on_message_in_disk: int = setting(
        256,
        help="Most messages of one pull of old messages",
        runtime=True,
        most=65_536,
        important=True,
        validator=at_least(1),
    )
    access_message_in_memory_max_ratio: int = setting(
        40,
        help="Messages further behind than this share of the machine's memory count as old",
        unit="%",
        runtime=True,
        most=100,
        important=True,
        validator=between(1, 100),
    )
    message_index_enable: bool = setting(True, help="Keep the index for queries by key", important=True)
    message_index_safe: bool = setting(
        False, help="Recover from as far back as the index needs", important=True
    )
    max_hash_slot_num: int = setting(
        5_000_000, help="Hash slots of an index file", validator=between(1, 100_000_000)
    )
    max_index_num: int = setting(
        20_000_000, help="Entries of an index file", validator=between(2, 80_000_000)
    )
    max_msgs_num_batch: int = setting(
        64, help="Most messages that a query by key answers", runtime=True, most=65_536, validator=at_least(1)
    )
    default_query_max_num: int = setting(
        32,
        help="Messages in the response to a query without a number",
        runtime=True,
        most=65_536,
        validator=at_least(1),
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1000,
        help="A write that takes longer makes sends fail fast",
        unit="ms",
        runtime=True,
        most=600_000,
        validator=at_least(1),
    )
    broker_role: BrokerRole = setting(
        Factory(_role, takes_self=True),
        help="Whether this broker leads, and whether sends wait for a slave",
        important=True,
    )
    ha_listen_port: int = setting(10912, help="Port that slaves connect to", validator=between(0, 65535))
    ha_send_heartbeat_interval: int = setting(
        5000, help="Time between two heartbeats on a slave's link", unit="ms", validator=at_least(1)
    )
    ha_housekeeping_interval: int = setting(
        20_000, help="Silence after which a slave's link ends", unit="ms", validator=at_least(1)
    )
    ha_transfer_batch_size: int = setting(
        32 << 10,
        help="Most log bytes in one packet to a slave, 4 MiB at most",
        unit="bytes",
        validator=at_least(1),
    )
    ha_master_address: str | None = setting(
        None, help="Where a slave finds its master's HA port", important=True
    )
    ha_slave_fallbehind_max: int = setting(
        256 << 20, help="A slave further behind counts as absent", unit="bytes", validator=at_least(0)
    )
    ha_catch_up_rate: int = setting(
        0,
        help="Bandwidth limit for a slave that catches up (more than haSlaveFallbehindMax behind); 0: none."
        " Must exceed the write rate, or the slave never catches up",
        unit="bytes a second",
        validator=at_least(0),
        runtime=True,
    )
    ha_diverged_log: DivergedLog = setting(
        DivergedLog.stop,
        help="Reaction of a slave whose log differs from its master's in acknowledged records: stop (stop"
        " following, keep everything), or aside (move its log to the folder `aside` and copy the master's)",
        runtime=True,
    )
    offset_check_in_slave: bool = setting(
        False, help="Let a slave correct the offsets of pulls, as a master does"
    )
    message_delay_level: str = setting(
        DELAY_LEVELS, help="The delay levels, from level 1 on", validator=_delay_levels
    )
    flush_delay_offset_interval: int = setting(
        10_000, help="Time between two saves of the delay progress", unit="ms", validator=at_least(1)
    )

    def __attrs_post_init__(self) -> None:
        if self.durability is None:
            return
        self._agree("flushDiskType", self.flush_disk_type, _flush_type(self))
        if self.broker_role is not BrokerRole.SLAVE or self.durability is Durability.replicated:
            self._agree("brokerRole", self.broker_role, _role(self))

    def _agree(self, key: str, given: enum.Enum, implied: enum.Enum) -> None:
        """Raise ConfigError when a setting contradicts `durability`."""
        if given is not implied and self.durability is not None:
            expected = (
                f"{key}={implied.name} or none with it, but {key}={given.name}: take one of the two out"
            )
            raise ConfigError("durability", self.durability.name, expected)

    @property
    def level(self) -> str:
        """The failures that an acknowledged message survives, by flush type and role: a name of Durability,
        or `replicated in memory` (SYNC_MASTER with ASYNC_FLUSH), which `durability` does not offer."""
        on_disk = self.flush_disk_type is FlushDiskType.SYNC_FLUSH
        if self.broker_role is BrokerRole.SYNC_MASTER:
            return "replicated" if on_disk else "replicated in memory"
        return "disk" if on_disk else "memory"

    @property
    def commit_log_path(self) -> str:
        """The folder of the commit log."""
        return self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")

    @property
    def queue_file_size(self) -> int:
        """The size of a consume queue file: whole units of 20 bytes."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20

    @property
    def index_file_size(self) -> int:
        """The size of an index file: header, slots, entries."""
        return 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num


def physical_memory(cgroup: str = "/sys/fs/cgroup") -> int:
    """Bytes of memory that this process may have: the machine's memory, or the limit of a container."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        found = 8 << 30
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups 2, and 1
        try:
            with open(os.path.join(cgroup, name), encoding="ascii") as file:
                text = file.read().strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal() and int(text) > 0:  # version 2 says `max` for none
            found = min(found, int(text))
    return found
