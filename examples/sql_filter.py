"""Let the broker select by the properties of messages. `rmq dev` allows this; other brokers need
enablePropertyFilter=true.

python examples/sql_filter.py [name server] [--loop asyncio]
"""

from __future__ import annotations

from command_line import run

import rmq

TOPIC = "ExampleSales"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            for number in range(20):
                properties = {"amount": str(number * 10), "region": "hz" if number % 2 else "bj"}
                await producer.send(rmq.Message(TOPIC, b"sale %d" % number, properties=properties))

        wanted = rmq.sql("amount > 100 AND region IN ('hz', 'sh')")
        seen = 0
        async with client.consumer("example-big-sales", {TOPIC: wanted}, consume_from="first") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    print(message.body.decode(), message.properties["amount"], message.properties["region"])
                    seen += 1
                if seen == 5:
                    break


if __name__ == "__main__":
    run(main)
