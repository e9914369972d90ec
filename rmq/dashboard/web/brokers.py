"""Pages of brokers: the list, a broker, and its changes; and of controllers with hand-overs."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.access.hidden import shown
from rmq.dashboard.web.jobs import started
from rmq.dashboard.web.page import Page, page


@page("/brokers")
async def brokers(page: Page) -> Response:
    """The list."""
    return page.show("brokers.html", brokers=await page.perform("brokers"))


@page("/brokers/{broker}")
async def broker(page: Page) -> Response:
    """A broker."""
    found = await page.perform("broker", broker=page.path("broker"), id=page.query.get("id", 0))
    return page.show("broker.html", broker=found, show=page.query.get("show", ""))


@page("/brokers/{broker}/setting", "GET", "POST")
async def setting(page: Page) -> Response:
    """Change a setting."""
    name, number = page.path("broker"), page.query.get("id", 0)
    if page.is_post:
        key, value = page.form.get("name", ""), page.form.get("value", "")
        await page.perform("change_setting", broker=name, id=number, name=key, value=value)
        return page.redirect("brokers", name, id=number, notice=f"{key} is {shown(key, value)} now.")
    found = await page.perform("broker", broker=name, id=number)
    key = page.query.get("name", "")
    one = next((one for one in found.settings if one.name == key), None)
    return page.show("setting.html", broker=found, name=name, key=key, setting=one)


@page("/brokers/{broker}/act", "POST")
async def act(page: Page) -> Response:
    """Write permission, and cleaning."""
    name, act = page.path("broker"), page.form.get("act", "")
    if act in ("wipe", "add"):
        await page.perform("set_writing", broker=name, allowed=act == "add")
        text = f"Producers {'may send to' if act == 'add' else 'leave'} {name}."
    else:
        done = await page.perform("clean_broker", broker=name, what=act)
        text = f"Cleaned at {', '.join(done.servers)}."
    return page.redirect("brokers", name, notice=text)


@page("/controllers", "GET", "POST")
async def controllers(page: Page) -> Response:
    """The state; a form starts a hand-over."""
    if page.is_post:
        broker, number = page.form.get("broker", ""), page.form.get("number", "0")
        return await started(page, "hand_over", broker=broker, number=number)
    return page.show("controllers.html", found=await page.perform("controllers"))
