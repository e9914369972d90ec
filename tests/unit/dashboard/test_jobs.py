"""Jobs: long work with progress and cancellation, bounded, seen by all and owned by one."""

from __future__ import annotations

import json
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.dashboard.access.roles import Role, password_hash
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.errors import LoginNeeded, TooMany, UnknownName
from rmq.dashboard.jobs import FILES_MAX, KEPT, OF_ONE_MAX, RUNNING_MAX, Job, Jobs, Order, Progress
from rmq.dashboard.operations import dead_letters
from rmq.errors import ConfigError
from rmq.message import Message
from rmq.testing.cluster import Cluster
from tests.unit.dashboard.site import consumed

from .site import BASE, Browser, Site, roles_file, site, text_of

API = "/api/v1/clusters/test"
LETTERS = 6


@asynccontextmanager
async def letters(**settings: Any) -> AsyncIterator[Site]:
    """A dashboard over a cluster in which the group billing has given six messages up."""
    async with Cluster("shop-a", topics={"Orders": 2, "Mail": 2}) as cluster, cluster.connect() as client:
        async with client.producer("checkout") as producer:
            for number in range(LETTERS):
                await producer.send(Message("Orders", b"lamp", keys=[f"order-{number}"]))
        await consumed(client, "billing", "Orders", LETTERS, fails="lamp")
        async with site(cluster, **settings) as made:
            yield made


async def _start(browser: Browser, name: str, **arguments: Any) -> Any:
    headers = {"origin": BASE, "x-csrf-token": browser.csrf}
    body = {"operation": name, "arguments": arguments}
    return await browser.http.post(f"{API}/jobs", json=body, headers=headers)


async def _cancel(browser: Browser, job: str) -> Any:
    headers = {"origin": BASE, "x-csrf-token": browser.csrf}
    return await browser.http.delete(f"{API}/jobs/{job}", headers=headers)


async def _job(browser: Browser, job: str) -> Any:
    return (await browser.http.get(f"{API}/jobs/{job}")).json()


async def test_all_letters_are_resent_in_a_job_whose_page_shows_its_progress_and_result() -> None:
    async with letters() as made:
        admin = await made.admin()
        await admin.get("/c/test/dead-letters?group=billing")

        done = await admin.post("/c/test/dead-letters/resend", group="billing", act="all")
        path = done.headers["location"]
        assert path.startswith("/c/test/jobs/")
        await made.cluster.advance(5)
        page = text_of((await admin.get(path)).text)
        assert "done 6 of 6" in page
        assert '"sent": 6' in page
        assert len(made.cluster.sent("Orders")) == 2 * LETTERS
        assert "resend_dead_letters" in text_of((await admin.get("/c/test/jobs")).text)


async def test_a_cancelled_job_keeps_the_steps_it_has_made_and_is_written_down() -> None:
    async with letters() as made:
        admin = await made.admin()
        await admin.get("/c/test")
        given = {"group": "billing", "all": True, "rate": 1}
        job = (await _start(admin, "resend_dead_letters", **given)).json()["id"]
        await made.cluster.advance(2.5)
        running = await _job(admin, job)
        assert (running["state"], running["total"]) == ("running", LETTERS)
        assert 0 < running["done"] < LETTERS

        cancelled = await admin.post(f"/c/test/jobs/{job}")
        assert cancelled.status_code == 303
        await made.cluster.advance(20)
        found = await _job(admin, job)
        assert (found["state"], found["done"]) == ("cancelled", running["done"])
        assert len(made.cluster.sent("Orders")) == LETTERS + running["done"]
        changes = (await admin.http.get(f"{API}/changes")).json()
        outcomes = {(one["operation"], one["outcome"]) for one in changes}
        assert ("resend_dead_letters", "cancelled") in outcomes
        assert (await _cancel(admin, job)).json()["state"] == "cancelled"


def _users(folder: pathlib.Path, **roles: str) -> pathlib.Path:
    """A roles file with these users."""
    proof = password_hash("pass word", b"s" * 16)
    rows = [f"  - {{name: {name}, role: {role}, password: {proof}}}" for name, role in roles.items()]
    return roles_file(folder, "users:\n" + "\n".join(rows))


@pytest.mark.parametrize(
    ("after", "problem"),
    [({"rita": "reader"}, "LoginNeeded"), ({"otto": "reader"}, "Forbidden"), ({"otto": "admin"}, "")],
)
async def test_a_job_ends_when_its_owner_is_removed_or_loses_the_role(
    tmp_path: pathlib.Path, after: dict[str, str], problem: str
) -> None:
    """It went on with the rights that its owner had at its start."""
    path = _users(tmp_path, otto="operator")
    async with letters(roles_file=path, account_login=False) as made:
        otto = made.browser()
        await otto.post("/login", name="otto", password="pass word", cluster="test")
        await otto.get("/c/test")
        given = {"group": "billing", "all": True, "rate": 1}
        job = (await _start(otto, "resend_dead_letters", **given)).json()["id"]
        await made.cluster.advance(1.5)
        sent = len(made.cluster.sent("Orders"))
        assert LETTERS < sent < 2 * LETTERS - 2
        _users(tmp_path, **after)
        await made.cluster.advance(20)
        admin = await _admin(made)
        found = await _job(admin, job)
        if problem:
            assert (found["state"], found["problem"]["name"]) == ("failed", problem)
            assert len(made.cluster.sent("Orders")) <= sent + 1
            changes = (await admin.http.get(f"{API}/changes")).json()
            assert any(one["outcome"].startswith(problem) for one in changes)
        else:
            assert (found["state"], found["done"]) == ("done", LETTERS)


async def test_an_export_of_a_user_who_is_removed_ends(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _users(tmp_path, otto="operator")
    given: list[int] = []

    async def exported(client: object, group: str, *, form: str) -> AsyncIterator[str]:
        for number in range(10):
            if number == 3:
                _users(tmp_path, rita="reader")
            given.append(number)
            yield f"{number}\n"

    monkeypatch.setattr(dead_letters.operate_letters, "exported", exported)
    monkeypatch.setattr(dead_letters, "LINES_OF_A_LOOK", 2)
    async with letters(roles_file=path, account_login=False) as made:
        otto = made.browser()
        await otto.post("/login", name="otto", password="pass word", cluster="test")
        with pytest.raises(LoginNeeded, match="the login of this export has ended"):
            await otto.http.get(f"{API}/dead-letters/billing/export")
    assert given == [0, 1, 2, 3]


async def test_a_job_that_fails_says_why() -> None:
    async with letters() as made:
        admin = await made.admin()
        await admin.get("/c/test")

        job = (await _start(admin, "reset_all", group="nobody", to="last")).json()["id"]
        await made.cluster.advance(1)
        found = await _job(admin, job)
        assert (found["state"], found["problem"]["name"]) == ("failed", "UnknownName")
        assert "no broker has a group nobody" in text_of((await admin.get(f"/c/test/jobs/{job}")).text)


async def test_all_topics_of_a_group_are_reset_and_all_brokers_are_cleaned() -> None:
    async with letters() as made, made.cluster.connect() as client:
        async with client.pull_consumer("billing") as consumer:
            for queue in await consumer.message_queues("Mail"):
                await consumer.commit(queue, 0)
        admin = await made.admin()
        page = await admin.get("/c/test/groups/billing/reset")
        assert "All 2 topics" in text_of(page.text)

        started = await admin.post("/c/test/jobs", operation="reset_all", group="billing", to="first")
        await made.cluster.advance(5)
        job = await _job(admin, started.headers["location"].rpartition("/")[2])
        assert (job["state"], job["done"]) == ("done", 2)
        assert job["result"]["topics"] == [
            {"topic": "Mail", "queues": 2, "error": ""},
            {"topic": "Orders", "queues": 2, "error": ""},
        ]
        assert (await client.admin.consume_stats("billing", "Orders")).lag == LETTERS

        started = await admin.post("/c/test/jobs", operation="clean_cluster", what="queues")
        await made.cluster.advance(5)
        job = await _job(admin, started.headers["location"].rpartition("/")[2])
        assert (job["state"], len(job["result"]["servers"])) == ("done", 1)


async def test_an_export_is_kept_as_a_file_for_the_identity_that_made_it(tmp_path: pathlib.Path) -> None:
    names = ("otto", "rita")
    path = _users(tmp_path, otto="operator", olga="operator", rita="reader")
    async with letters(roles_file=path, account_login=False) as made:
        otto, rita, olga = made.browser(), made.browser(), made.browser()
        for browser, name in ((otto, names[0]), (rita, names[1]), (olga, "olga")):
            await browser.post("/login", name=name, password="pass word", cluster="test")
            await browser.get("/c/test")
        refused = await _start(rita, "export_dead_letters", group="billing")
        assert refused.status_code == 403

        for form in ("jsonl", "csv"):
            job = (await _start(otto, "export_dead_letters", group="billing", form=form)).json()["id"]
            await made.cluster.advance(5)
            file = await otto.get(f"/c/test/jobs/{job}/file")
            assert f'filename="dead-letters-billing.{form}"' in file.headers["content-disposition"]
            assert len(file.text.splitlines()) == LETTERS + (form == "csv")
            assert (await otto.http.get(f"{API}/jobs/{job}/file")).text == file.text
            assert (await _job(otto, job))["result"]["letters"] == LETTERS
        assert "body" in file.text.splitlines()[0]
        assert (await made.browser().http.get(f"{API}/jobs/{job}")).status_code == 404
        for other in (rita, olga):
            seen = await _job(other, job)
            assert (seen["state"], seen["result"], seen["has_file"]) == ("done", None, False)
            for path in (f"/c/test/jobs/{job}/file", f"{API}/jobs/{job}/file"):
                assert (await other.http.get(path)).status_code == 404
        assert (await _cancel(rita, job)).status_code == 403
        assert (await _cancel(olga, job)).status_code == 403
        assert (await _cancel(await _admin(made), job)).status_code == 200


async def _admin(made: Site) -> Browser:
    admin = await made.admin()
    await admin.get("/c/test")
    return admin


async def test_only_long_operations_run_as_jobs_with_the_role_and_arguments_that_they_need() -> None:
    async with letters() as made:
        admin = await _admin(made)
        anonymous = made.browser()

        for name, arguments, status in (
            ("delete_topic", {"topic": "Orders", "confirm": "Orders"}, 400),
            ("start_job", {}, 400),
            ("resend_dead_letters", {"group": "billing", "colour": "red"}, 400),
            ("reset_all", {"group": "billing"}, 400),
        ):
            assert (await _start(admin, name, **arguments)).status_code == status
        await anonymous.get("/c/test")
        assert (await _start(anonymous, "clean_cluster", what="logs")).status_code == 401
        export = await admin.http.post(
            f"{API}/dead-letters/billing/export",
            json={},
            headers={"origin": BASE, "x-csrf-token": admin.csrf},
        )
        assert (export.status_code, "needs a job" in export.text) == (400, True)
        assert (await admin.http.get(f"{API}/jobs")).json() == []


# --- bounds ---


def _order(name: str = "ada") -> Order:
    return Order("act", "", "test", Identity(name, Role.ADMIN, "user", own=True))


async def _forever(progress: Progress) -> None:
    await anyio.sleep_forever()


async def _nothing(progress: Progress) -> int:
    return 1


async def _write(progress: Progress) -> None:
    assert progress.file is not None
    progress.file.write_text(json.dumps("x"))


async def test_jobs_of_one_and_of_all_are_bounded() -> None:
    async with anyio.create_task_group() as tasks:
        jobs = Jobs(tasks, lambda: 1)
        for name in ("a", "b", "c"):
            for _ in range(min(OF_ONE_MAX, RUNNING_MAX - len(jobs.of("test")))):
                jobs.start(_order(name), _forever)
            with pytest.raises(TooMany):
                jobs.start(_order(name), _forever)
        assert len(jobs.of("test")) == RUNNING_MAX
        with pytest.raises(TooMany):
            jobs.start(_order("d"), _forever)
        tasks.cancel_scope.cancel()
    assert {one.state for one in jobs.of("test")} == {"cancelled"}


async def test_ended_jobs_and_their_files_are_forgotten(tmp_path: pathlib.Path) -> None:
    async with anyio.create_task_group() as tasks:
        jobs = Jobs(tasks, lambda: 1, tmp_path)
        made: list[Job] = []
        for _ in range(KEPT + 20):
            made.append(jobs.start(_order(), _write))
            await anyio.wait_all_tasks_blocked()
        assert len(list(tmp_path.iterdir())) <= FILES_MAX
        assert len(jobs.of("test")) <= KEPT + 1
        with pytest.raises(UnknownName):
            jobs.find(made[0].id, "test")
        with pytest.raises(UnknownName):
            jobs.find(made[-1].id, "other")


async def test_the_end_of_the_dashboard_cancels_jobs_and_removes_their_files(tmp_path: pathlib.Path) -> None:
    async def act(progress: Progress) -> None:
        await _write(progress)
        await anyio.sleep_forever()

    async def fail(progress: Progress) -> None:
        await _write(progress)
        raise ConfigError("a", "b", "c")

    async with anyio.create_task_group() as tasks:
        jobs = Jobs(tasks, lambda: 1, tmp_path)
        job, failed = jobs.start(_order(), act), jobs.start(_order(), fail)
        await anyio.wait_all_tasks_blocked()
        assert (job.state, failed.state) == ("running", "failed")
        tasks.cancel_scope.cancel()
    assert job.state == "cancelled"
    assert list(tmp_path.iterdir()) == []
