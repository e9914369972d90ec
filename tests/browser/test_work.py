"""Work in a browser: members and their check, jobs, a message and its trace, delayed messages, transactions,
streams."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Dev, faults_of, picture

pytestmark = pytest.mark.browser

LIVE = """
import sys, trio, rmq
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode

async def hang(address):
    "A member that answers no question."
    data = ConsumerData("crew", "CONSUME_PASSIVELY", "CLUSTERING")
    data.subscription_data_set.append(SubscriptionData("Crates", "fragile"))
    body = HeartbeatData("10.0.0.9@stuck", consumer_data_set=[data]).to_json()
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    await stream.send_all(encode(Command.request(RequestCode.HEART_BEAT, body=body)))
    return stream

async def main():
    async with (
        rmq.connect(sys.argv[1], plugins=[rmq.MessageTrace()]) as client,
        rmq.connect(sys.argv[1], client_id="old@release") as old,
        rmq.connect(sys.argv[1], client_id="new@release") as new,
    ):
        await client.admin.create_topic("Crates", queues=2)
        async with client.producer("dock") as producer:
            sent = await producer.send(rmq.Message("Crates", b'{"crate": 1}', tags="fragile", keys="crate-1"))
            own = await producer.send(rmq.Message("Crates", b"late", delay_ms=3_600_000))
            level = await producer.send(rmq.Message("Crates", b"later", delay_level=14))
            async with (
                client.consumer("crew", {"Crates": "*"}, consume_from="first") as consumer,
                old.consumer("sorters", {"Crates": "fragile"}),
                new.consumer("sorters", {"Crates": "fragile || heavy"}),
            ):
                await old.ready()
                await new.ready()
                async with trio.open_nursery() as nursery:
                    async def handle(message):
                        if message.reconsume_times == 0:
                            raise ValueError("too heavy")
                    nursery.start_soon(consumer.run, handle)
                    streams = [await hang(one) for one in await client.admin.broker_addresses()]
                    print(sent.message_id, own.recall_handle, flush=True)
                    await trio.sleep_forever()

trio.run(main)
"""


def main_of(page: Any) -> str:
    """The text of a page, as a person reads it."""
    return " ".join(page.locator("main").inner_text().split())


@pytest.fixture(scope="module")
def crew(dev: Dev) -> Iterator[tuple[str, str]]:
    """A member that works and traces, and one that hangs: the id of a message, and the recall handle of a
    delayed one."""
    process = subprocess.Popen([sys.executable, "-c", LIVE, dev.namesrv], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    message, handle = process.stdout.readline().split()
    yield message, handle
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_check_names_the_member_that_hangs(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/groups/crew/check")
    page.get_by_text("1 of 2 members have answered").wait_for(timeout=5000)
    assert faults_of(page, "check-asking") == []
    page.get_by_role("heading", name="Members that did not answer").wait_for(timeout=10_000)
    assert "10.0.0.9@stuck no answer within 3 s" in main_of(page)
    assert faults_of(page, "check-silent") == []
    page.get_by_role("link", name="Check again").click()
    page.get_by_text("members have answered").wait_for(timeout=5000)


def test_a_check_names_members_that_subscribe_differently(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/groups/sorters/check")
    page.get_by_text("2 members asked").wait_for(timeout=10_000)
    text = main_of(page)
    assert "Subscriptions that differ Crates" in text
    assert "fragile old@release fragile || heavy new@release" in text
    assert faults_of(page, "check-subscriptions") == []


def test_a_broker_shows_its_clients_by_language_and_version(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/brokers")
    page.locator("main table a").first.click()
    page.get_by_role("heading", name="Connections").wait_for()
    rows = page.locator("section", has=page.get_by_role("heading", name="Connections")).locator("tbody tr")
    shown = [" ".join(row.split()) for row in rows.all_inner_texts()]
    assert [row for row in shown if re.fullmatch(r"PYTHON V\S+ \d+", row)], shown
    assert faults_of(page, "broker-versions") == []


def test_a_member_that_hangs_is_given_up_while_its_page_is_there(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/groups/crew/member?client_id=10.0.0.9@stuck")
    page.get_by_text("The member is asked for its state.").wait_for(timeout=2000)
    assert faults_of(page, "member-asked") == []
    page.get_by_role("alert").wait_for(timeout=10_000)
    assert "10.0.0.9@stuck of crew has not answered within 3 s" in main_of(page)
    assert faults_of(page, "member-silent") == []


def test_a_member_shows_its_queues_and_its_stack(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/groups/crew")
    assert faults_of(page, "group-members") == []
    page.locator("tr", has_not_text="stuck").get_by_role("link", name="stack").click()
    page.get_by_role("heading", name="Stack").wait_for()
    assert "Crates" in main_of(page)
    assert faults_of(page, "member") == []
    page.goto("/c/dev/groups/crew/times?topic=Crates")
    assert faults_of(page, "times") == []


def test_a_message_shows_its_trace_and_is_given_and_copied(crew: tuple[str, str], page: Any) -> None:
    message, _ = crew
    for _ in range(40):  # traces are stored a few seconds later
        page.goto(f"/c/dev/messages/show?topic=Crates&id={message}")
        if page.locator("svg.timeline rect.failed").count():
            break
        page.wait_for_timeout(500)
    text = main_of(page)
    assert "consume" in text
    assert faults_of(page, "message-trace") == []
    page.locator("svg.timeline").scroll_into_view_if_needed()
    picture(page, "trace-light")
    for form, shown in (("JSON", '"crate": 1'), ("Hex", "7b 22 63 72")):
        page.get_by_role("link", name=form, exact=True).click()
        page.wait_for_load_state()
        assert shown in page.locator("pre.content").inner_text()
    assert faults_of(page, "message-hex") == []
    page.get_by_label("Group", exact=True).fill("crew")
    page.get_by_label("Member", exact=True).fill("nobody@1")
    page.get_by_role("button", name="Give").click()
    page.wait_for_load_state()
    assert "crew has no member nobody@1" in main_of(page)
    page.goto(f"/c/dev/messages/show?topic=Crates&id={message}")
    page.get_by_role("button", name="Send a copy").click()
    page.get_by_text("A copy is in Crates").wait_for()


def test_a_delayed_message_waits_and_is_taken_back(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/delayed")
    assert int(page.locator("tr", has_text="any time").locator("td").last.inner_text()) >= 1
    assert page.locator("tr", has_text="10m").count() == 1
    assert faults_of(page, "delayed-waiting") == []
    page.get_by_role("link", name="level 14").click()
    page.get_by_role("heading", name="Messages that wait").wait_for()
    assert "Crates" in main_of(page)
    assert "later" in main_of(page)
    page.goto("/c/dev/delayed/messages")
    row = page.locator("tr", has_text="late")
    assert "Crates" in row.inner_text()
    assert row.get_by_role("button", name="Recall").count() == 1
    assert faults_of(page, "delayed-messages") == []
    page.goto("/c/dev/delayed")
    page.get_by_label("Recall handle").fill(crew[1])
    page.get_by_role("button", name="Recall").click()
    page.get_by_role("status").wait_for()
    page.goto("/c/dev/delayed")
    page.get_by_label("Recall handle").fill("no handle")
    page.get_by_role("button", name="Recall").click()
    page.wait_for_load_state()
    assert "What to do" in main_of(page)
    assert faults_of(page, "recall-refused") == []


UNDECIDED = """
import sys, trio, rmq

async def main():
    async with rmq.connect(sys.argv[1]) as client:
        await client.admin.create_topic("Payments", queues=1)
        async with client.transactional_producer("payer", lambda message: rmq.UNKNOWN) as producer:
            transaction = producer.transaction(rmq.Message("Payments", b"42 coins", keys="p-42"))
            await transaction.__aenter__()
            with trio.fail_after(60):
                while not await client.discarded_transactions():
                    await trio.sleep(0.2)

trio.run(main)
"""


def test_a_transaction_that_was_discarded_is_checked_again(dev: Dev, page: Any) -> None:
    subprocess.run([sys.executable, "-c", UNDECIDED, dev.namesrv], check=False, capture_output=True)
    page.goto("/c/dev/transactions")
    row = page.locator("tr", has_text="42 coins")
    assert "payer" in row.inner_text()
    assert faults_of(page, "transactions-discarded") == []
    row.get_by_role("button", name="Ask again").click()
    page.get_by_role("status").wait_for()
    assert faults_of(page, "transactions-resumed") == []


STREAM = """
import sys, rmq
from rmq.client.blocking import connect

with connect(sys.argv[1]) as client:
    client.admin.create_topic("Clicks", queues=2)
    with client.producer("site") as producer:
        for number in range(30):
            producer.send(rmq.Message("Clicks", b"click"))
    with client.pull_consumer("spark-clicks") as pulls:
        for queue in pulls.message_queues("Clicks"):
            pulls.commit(queue, 5)
"""


def test_streams_show_their_lag_by_group_id(dev: Dev, page: Any) -> None:
    subprocess.run([sys.executable, "-c", STREAM, dev.namesrv], check=True, capture_output=True)
    for _ in range(40):  # the progress of all groups is shared for 10 s
        page.goto("/c/dev/streams")
        if page.locator("tr", has_text="spark-clicks").count():
            break
        page.wait_for_timeout(500)
    row = page.locator("tr", has_text="spark-clicks")
    assert "Clicks" in row.inner_text()
    assert row.locator("td.num").inner_text() == "20"
    assert faults_of(page, "streams-lag") == []


LETTERS = """
import sys, trio, rmq

async def main():
    async with rmq.connect(sys.argv[1]) as client:
        await client.admin.create_topic("Returns", queues=4)
        async with client.producer("shop") as producer:
            for _ in range(40):
                await producer.send_batch([rmq.Message("Returns", b"return", keys="r") for _ in range(100)])
        left = 4000
        options = {"consume_from": "first", "max_reconsume_times": 0}
        async with client.consumer("returners", {"Returns": "*"}, **options) as consumer:
            async with trio.open_nursery() as nursery:
                async def handle(message):
                    nonlocal left
                    left -= 1
                    raise ValueError("no such order")
                nursery.start_soon(consumer.run, handle)
                with trio.fail_after(120):
                    while left > 0 or (await dead(client)) < 4000:
                        await trio.sleep(0.2)
                nursery.cancel_scope.cancel()

async def dead(client):
    try:
        stats = await client.admin.topic_stats("%DLQ%returners")
    except rmq.RmqError:
        return 0
    return sum(ends.max_offset - ends.min_offset for ends in stats.values())

trio.run(main)
"""


def test_a_long_job_shows_its_progress_and_is_cancelled(dev: Dev, page: Any) -> None:
    subprocess.run([sys.executable, "-c", LETTERS, dev.namesrv], check=True)
    page.goto("/c/dev/dead-letters?group=returners")
    assert faults_of(page, "dead-letters-many") == []
    page.get_by_role("button", name="Resend all").click()
    page.wait_for_url(re.compile("/jobs/[0-9a-f]+$"))
    page.locator("#live progress, #live .badge.info").first.wait_for()
    job = page.url
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("The job is cancelled").wait_for()
    page.goto(job)
    assert page.locator("#live .badge").inner_text() == "cancelled"
    assert faults_of(page, "job-cancelled") == []
    page.goto("/c/dev/jobs")
    assert "resend" in main_of(page)
    assert faults_of(page, "jobs-list") == []


def test_offsets_are_copied_to_another_group_after_a_preview(crew: tuple[str, str], page: Any) -> None:
    page.goto("/c/dev/groups/crew")
    page.get_by_role("link", name="Copy offsets").click()
    page.get_by_label("group").first.fill("night-crew")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Copy", exact=True).wait_for()
    assert faults_of(page, "copy-preview") == []
    shown = page.locator("main table tbody tr").all_inner_texts()
    assert [row.split()[0] for row in shown if row.startswith("Crates")] == ["Crates", "Crates"]
    page.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_url("**/groups/night-crew*")
    assert "Crates" in main_of(page)
