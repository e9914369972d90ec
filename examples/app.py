"""An application of handlers with typed bodies, which runs until a signal.

rmq run --dir examples app:app (for ever, until a signal) python examples/app.py [name server] [--loop
asyncio] (until three orders are invoiced)
"""

from __future__ import annotations

import os

import anyio
import msgspec
from command_line import run

import rmq


class Order(msgspec.Struct):
    number: int
    item: str


class Invoice(msgspec.Struct):
    order: int
    total: int


PRICES = {"tea": 5, "cups": 20}
app = rmq.App(group="example-app")  # its name servers are those of RMQ_NAMESRV_ADDR
invoiced: set[int] = set()
finished = anyio.Event()


@app.consumer(
    "ExampleAppOrders", group="example-app-billing", model=Order, consume_from="first", concurrency=50
)
async def bill(order: Order) -> None:
    invoice = Invoice(order.number, PRICES[order.item])  # an unknown item: retried, by `retry`
    await app.send("ExampleAppInvoices", invoice, keys=[str(order.number)])


retry = rmq.Backoff(1, 60, tries=5)


@app.consumer(
    "ExampleAppInvoices", group="example-app-mail", model=Invoice, consume_from="first", retry=retry
)
async def mail(invoice: Invoice, message: rmq.StoredMessage) -> None:
    print(f"invoice {message.keys[0]}: {invoice.total}")
    invoiced.add(invoice.order)
    if len(invoiced) == 3:
        finished.set()


async def main(namesrv: str) -> None:
    os.environ.setdefault("RMQ_NAMESRV_ADDR", namesrv)
    async with app:
        for number, item in enumerate(["tea", "cups", "tea"]):
            await app.send("ExampleAppOrders", Order(number, item))
        await finished.wait()


if __name__ == "__main__":
    run(main)
