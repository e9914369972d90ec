"""Send a message if, and only if, the work that belongs to it succeeds.

python examples/transactional.py [name server] [--loop asyncio]
"""

from __future__ import annotations

from command_line import run

import rmq

TOPIC = "ExampleTransfers"


async def main(namesrv: str) -> None:
    database: set[str] = set()

    async def check_back(message: rmq.StoredMessage) -> rmq.Decision:
        """Decide about a half message whose end the broker does not know."""
        return rmq.COMMIT if message.keys[0] in database else rmq.UNKNOWN

    async with rmq.connect(namesrv) as client:
        async with client.transactional_producer("example-pay", check_back) as producer:
            for key in ("41", "42", "43"):
                try:
                    async with producer.transaction(rmq.Message(TOPIC, key.encode(), keys=[key])):
                        if key == "42":
                            raise ValueError("no money")
                        database.add(key)  # a normal exit commits
                except ValueError as error:
                    print(f"{key}: rolled back: {error}")

        seen: set[str] = set()
        async with client.consumer("example-ledger", {TOPIC: "*"}, consume_from="first") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    print(f"{message.keys[0]}: committed")
                    seen.add(message.keys[0])
                if seen == database:
                    break


if __name__ == "__main__":
    run(main)
