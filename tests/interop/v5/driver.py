"""RocketMQ's 5.x client for Python: driver.py ENDPOINTS ACTION KEY=VALUE ...; a line for each event."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

LOCK = threading.Lock()


def say(line: str) -> None:
    with LOCK:
        print(line, flush=True)


def said(message: Any) -> None:
    keys, colour = ",".join(message.keys), message.properties.get("colour", "-")
    say(f"message {message.body.decode()} {message.delivery_attempt} {message.tag or '-'} {keys} {colour}")


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        say(f"check {message.body.decode()}")
        return TransactionResolution.COMMIT


def send(configuration: Any, given: dict[str, str]) -> None:
    end = given.get("end", "")
    topics = (given["topic"],)
    producer = Producer(configuration, topics, Checker()) if end else Producer(configuration, topics)
    producer.startup()
    for body in given["bodies"].split(","):
        message = Message()
        message.topic, message.body = given["topic"], body.encode()
        message.tag, message.keys = given.get("tag", "t"), f"key-{body}"
        message.add_property("colour", given.get("colour", "red"))
        if "group" in given:
            message.message_group = given["group"]
        if "delay" in given:
            message.delivery_timestamp = int(time.time()) + int(given["delay"]) // 1000
        if not end:
            say(f"sent {producer.send(message).message_id}")
            continue
        transaction = producer.begin_transaction()
        say(f"sent {producer.send(message, transaction).message_id}")
        if end == "commit":
            transaction.commit()
        elif end == "rollback":
            transaction.rollback()
    if end == "orphan":
        time.sleep(30)
    producer.shutdown()


def expression(given: dict[str, str]) -> Any:
    if "sql" in given:
        from rocketmq.grpc_protocol import FilterType  # type: ignore[import-not-found]

        return FilterExpression(given["sql"], FilterType.SQL)
    return FilterExpression(given.get("filter", "*"))


def simple(configuration: Any, given: dict[str, str]) -> None:
    consumer = SimpleConsumer(configuration, given["consumer"], {given["topic"]: expression(given)}, 5)
    consumer.startup()
    say("started")
    end = time.time() + int(given["seconds"])
    while time.time() < end:
        try:
            for message in consumer.receive(16, 10) or []:
                said(message)
                if given.get("ack") != "no":
                    consumer.ack(message)
        except Exception as error:
            say(f"error {error}")
            time.sleep(1)
    consumer.shutdown()


def push(configuration: Any, given: dict[str, str]) -> None:
    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            said(message)
            fails = message.body.decode() == given.get("fails") and message.delivery_attempt == 1
            return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    wanted = {given["topic"]: expression(given)}
    consumer = PushConsumer(configuration, given["consumer"], Listener(), wanted)
    consumer.startup()
    say("started")
    time.sleep(int(given["seconds"]))
    consumer.shutdown()


if __name__ == "__main__":
    address, action, *rest = sys.argv[1:]
    options = dict(one.split("=", 1) for one in rest)
    account = Credentials(options["user"], options["secret"]) if "user" in options else Credentials()
    {"send": send, "simple": simple, "push": push}[action](
        ClientConfiguration(address, account, request_timeout=10), options
    )
