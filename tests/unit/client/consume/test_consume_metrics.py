"""ConsumeMetrics: a consumer's rates."""

from __future__ import annotations

from rmq.client.consume.deliveries.consume_metrics import ConsumeMetrics
from rmq.protocol.bodies import ConsumeStatus


def test_rates_since_the_oldest_sample() -> None:
    rates = ConsumeMetrics()
    rates.sample(100.0, {})
    rates.pull("T", 60)
    rates.failure("T")
    rates.failure("T")
    status = rates.of(["T", "U"], 110.0, {"T": 8})
    assert status["T"] == ConsumeStatus(
        pull_tps=6.0, consume_ok_tps=5.0, consume_failed_tps=0.2, consume_failed_msgs=2
    )
    assert status["U"] == ConsumeStatus()


def test_rates_of_the_last_samples_only() -> None:
    rates = ConsumeMetrics()
    rates.pull("T", 1000)
    for now in (0.0, 30.0, 60.0, 90.0):
        rates.sample(now, {})
    rates.pull("T", 60)
    assert rates.of(["T"], 90.0, {})["T"].pull_tps == 1.0


def test_queues_that_go_and_come_do_not_make_rates_negative() -> None:
    rates = ConsumeMetrics()
    rates.pull("T", 10)
    rates.sample(0.0, {})
    assert rates.of(["T"], 10.0, {"T": 9})["T"].consume_ok_tps == 0.0


def test_without_a_sample_there_is_no_rate() -> None:
    rates = ConsumeMetrics()
    rates.pull("T", 10)
    assert rates.of(["T"], 10.0, {})["T"] == ConsumeStatus()
