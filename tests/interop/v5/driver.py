"""RocketMQ's 5.x client for Python: driver.py ENDPOINTS ACTION KEY=VALUE ...; a line for each event."""

from __future__ import annotations

import collections
import sys
import threading
import time
from collections.abc import Callable
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
        print(line.replace("\n", " "), flush=True)


def name_of(message: Any) -> str:
    return str(message.body.decode().split(".")[0])


def said(message: Any) -> None:
    keys, colour = ",".join(message.keys) or "-", message.properties.get("colour", "-")
    words = (name_of(message), message.delivery_attempt, message.tag or "-", keys, colour)
    say("message " + " ".join(map(str, words)) + f" {message.message_group or '-'} {len(message.body)}")


def tried(action: Callable[[], Any], given: dict[str, str]) -> Any:
    """Say an error; with `retry` act again until it works."""
    while True:
        try:
            return action()
        except Exception as error:
            say(f"error {error}")
            if "retry" not in given:
                return None
            time.sleep(0.5)


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        say(f"check {message.body.decode()}")
        return TransactionResolution.COMMIT


def message_of(body: str, given: dict[str, str]) -> Any:
    message = Message()
    message.topic = given["topic"]
    message.body = (body + "." * int(given.get("padding", "0"))).encode()
    message.tag, message.keys = given.get("tag", "t"), f"key-{body}"
    message.add_property("colour", given.get("colour", "red"))
    if "group" in given:
        message.message_group = given["group"]
    if "delay" in given:
        message.delivery_timestamp = int(time.time()) + int(given["delay"]) // 1000
    return message


def send(configuration: Any, given: dict[str, str]) -> None:
    end, topics = given.get("end", ""), (given["topic"],)
    producer = Producer(configuration, topics, Checker() if end else None, tls_enable="tls" in given)
    producer.startup()
    say("started")
    for body in filter(None, given["bodies"].split(",")):
        message = message_of(body, given)
        if end:
            transaction = producer.begin_transaction()
            say(f"sent {body} {producer.send(message, transaction).message_id}")
            if end == "commit":
                transaction.commit()
            elif end == "rollback":
                transaction.rollback()
            continue
        receipt = tried(lambda message=message: producer.send(message), given)
        if receipt is not None:
            say(f"sent {body} {receipt.message_id}")
            if "recall" in given:
                producer.recall_message(given["topic"], receipt.recall_handle)
                say(f"recalled {body}")
        time.sleep(int(given.get("every", "0")) / 1000)
    if end == "orphan":
        time.sleep(60)
    producer.shutdown()


def expression(given: dict[str, str]) -> Any:
    if "sql" in given:
        from rocketmq.grpc_protocol import FilterType  # type: ignore[import-not-found]

        return FilterExpression(given["sql"], FilterType.SQL)
    return FilterExpression(given.get("filter", "*"))


def simple(configuration: Any, given: dict[str, str]) -> None:
    wanted = {given["topic"]: expression(given)}
    consumer = SimpleConsumer(configuration, given["consumer"], wanted, 5, tls_enable="tls" in given)
    consumer.startup()
    say("started")
    end, left = time.time() + int(given["seconds"]), int(given.get("count", "1000000"))
    while time.time() < end and left > 0:
        try:
            for message in consumer.receive(int(given.get("batch", "16")), 10) or []:
                said(message)
                left -= 1
                if "change" in given and message.delivery_attempt == 1:
                    consumer.change_invisible_duration(message, int(given["change"]))
                elif given.get("ack") != "no":
                    consumer.ack(message)
                    say(f"acked {name_of(message)}")
        except Exception as error:
            say(f"error {error}")
            time.sleep(1)
    consumer.shutdown()


def push(configuration: Any, given: dict[str, str]) -> None:
    calls: collections.Counter[str] = collections.Counter()

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            said(message)
            calls[name_of(message)] += 1  # retries in order are the client's: each has the same attempt
            times = int(given.get("times", "1"))
            fails = name_of(message) == given.get("fails") and calls[name_of(message)] <= times
            return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    wanted = {given["topic"]: expression(given)}
    consumer = PushConsumer(configuration, given["consumer"], Listener(), wanted, tls_enable="tls" in given)
    consumer.startup()
    say("started")
    time.sleep(int(given["seconds"]))
    consumer.shutdown()


if __name__ == "__main__":
    address, action, *rest = sys.argv[1:]
    options = dict(one.split("=", 1) for one in rest)
    account = Credentials(options["user"], options["secret"]) if "user" in options else Credentials()
    try:
        {"send": send, "simple": simple, "push": push}[action](
            ClientConfiguration(address, account, request_timeout=10), options
        )
    except Exception as error:
        say(f"error {error}")
        sys.exit(1)
