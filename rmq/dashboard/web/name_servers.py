"""Pages of name servers: settings, routes, key-value configs."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.operations.name_servers import ORDER_CONF
from rmq.dashboard.web.page import Page, page
from rmq.errors import RmqError


@page("/name-servers", "GET", "POST")
async def name_servers(page: Page) -> Response:
    """The list, a route, and the configs of a namespace."""
    if page.is_post:
        return await _change(page)
    topic, namespace = page.query.get("topic", ""), page.query.get("namespace", ORDER_CONF)
    problem, configs = "", {}
    try:
        configs = await page.perform("kv_configs", namespace=namespace)
    except RmqError as error:
        problem = str(error)
    return page.show(
        "name_servers.html",
        servers=await page.perform("name_servers"),
        topic=topic,
        route=await page.perform("route", topic=topic) if topic else None,
        namespace=namespace,
        configs=configs,
        problem=problem,
    )


async def _change(page: Page) -> Response:
    form = page.form
    namespace, key = form.get("namespace", ""), form.get("key", "")
    if form.get("act") == "delete":
        await page.perform("delete_kv_config", namespace=namespace, key=key)
        return page.redirect("name-servers", namespace=namespace, notice=f"{key} is deleted.")
    await page.perform("put_kv_config", namespace=namespace, key=key, value=form.get("value", ""))
    return page.redirect("name-servers", namespace=namespace, notice=f"{key} is kept.")
