"""`rmq broker --processes N --with-namesrv PORT`: several brokers as one service, with a name server."""

from __future__ import annotations

import os

import trio

from rmq.broker.__main__ import parse, settings
from rmq.cli.output import echo, fail
from rmq.config import parse_addresses
from rmq.errors import RmqError
from rmq.operate.supervisor import members, name_server, supervise
from rmq.remoting.address import join_address
from rmq.server.log_limit import start_log
from rmq.server.main import note_failure
from rmq.server.process import check_paths, ignore_unused


def main(count: int, arguments: list[str], port: int = 0) -> int:
    """Run `count` brokers, each with the arguments of `rmq broker`, and a name server when `port` is not 0,
    until SIGTERM or SIGINT; return the exit status of `supervise`.
    """
    start_log()
    ignore_unused()
    options = parse(arguments)
    try:
        config, store_config, tls = settings(options)
        check_paths(config, store_config, data=store_config.store_path_root_dir)
        start_log(config)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        beside = [name_server(port, config, store_config, tls)] if port else []
        if port:
            own = join_address(config.broker_ip1, port)
            known = dict.fromkeys([own, *parse_addresses(config.namesrv_addr)])
            arguments = [*arguments, "-n", ";".join(known)]
        brokers = members(count, config, store_config, cores, arguments)
        return trio.run(supervise, brokers, beside, config, echo)
    except (RmqError, OSError) as error:
        note_failure("broker", error, options)
        fail(error)
