"""Makes orders.csv: the order events that `rmq demo` publishes.

    python examples/data/make_orders.py > examples/data/orders.csv

A shop's day: about a thousand orders of six regions, each passing through its steps
(created, paid, packed, shipped, delivered; some are cancelled or refunded), written in the
order in which they happened, so that the steps of many orders are interleaved. The seed is
fixed and so is the output; the data is invented and names nobody.
"""

from __future__ import annotations

import csv
import io
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

COLUMNS = ("order_id", "step", "region", "amount", "currency", "customer", "ts")

# Region -> currency, typical amount, decimals of the currency, share of the orders.
REGIONS: dict[str, tuple[str, float, int, int]] = {
    "hangzhou": ("CNY", 260.0, 2, 30),
    "shanghai": ("CNY", 310.0, 2, 22),
    "berlin": ("EUR", 48.0, 2, 16),
    "london": ("GBP", 41.0, 2, 12),
    "new-york": ("USD", 64.0, 2, 12),
    "tokyo": ("JPY", 5200.0, 0, 8),
}

# The ways an order can go, with their shares in percent.
JOURNEYS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("created", "paid", "packed", "shipped", "delivered"), 79),
    (("created", "cancelled"), 8),
    (("created", "paid", "cancelled", "refunded"), 6),
    (("created", "paid", "packed", "shipped", "delivered", "refunded"), 7),
)

# Step -> the mean wait before it, in minutes.
WAITS = {
    "created": 0,
    "paid": 4,
    "packed": 55,
    "shipped": 120,
    "delivered": 420,
    "cancelled": 25,
    "refunded": 180,
}

START = datetime(2024, 11, 11, tzinfo=UTC)


def order_events(rng: random.Random, number: int) -> Iterator[tuple[datetime, int, dict[str, str]]]:
    """Yields the events of one order as (time, order number, row)."""
    region = rng.choices(list(REGIONS), weights=[entry[3] for entry in REGIONS.values()])[0]
    currency, typical, decimals, _ = REGIONS[region]
    amount = f"{typical * rng.lognormvariate(0, 0.6):.{decimals}f}"
    customer = f"c-{rng.randrange(1, 620):05d}"
    journey = rng.choices([steps for steps, _ in JOURNEYS], weights=[share for _, share in JOURNEYS])[0]
    when = START + timedelta(seconds=rng.randrange(24 * 3600))
    for step in journey:
        when += timedelta(seconds=int(rng.expovariate(1) * WAITS[step] * 60) + (step != "created"))
        row = (
            f"O-2024-{number:06d}",
            step,
            region,
            amount,
            currency,
            customer,
            when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        yield when, number, dict(zip(COLUMNS, row, strict=True))


def make_orders(orders: int = 1070, seed: int = 4097) -> str:
    """The whole CSV text, events sorted by time; the steps of an order keep their sequence."""
    rng = random.Random(seed)
    events = [event for number in range(1, orders + 1) for event in order_events(rng, number)]
    events.sort(key=lambda event: event[:2])
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, _, row in events)
    return out.getvalue()


if __name__ == "__main__":
    sys.stdout.write(make_orders())
