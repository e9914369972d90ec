"""Pages of accounts: the list, reasons for permissions, and changes."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import Forbidden, LoginNeeded
from rmq.dashboard.operations.figures import ABSENT
from rmq.dashboard.web.page import Page, page
from rmq.errors import NETWORK_ERRORS, ResponseError

WHY = ("account", "kind", "name", "action")


@page("/accounts")
async def accounts(page: Page) -> Response:
    """The list, and an answer to why."""
    if page.caller.identity.role < Role.ADMIN:
        kind = Forbidden if page.caller.identity.is_logged_in else LoginNeeded
        return page.error(kind("only administrators see accounts"))
    query = {key: page.query.get(key, "") for key in WHY}
    found, problem, answer = None, "", None
    try:
        found = await page.perform("accounts")
        if query["account"] and query["name"]:
            answer = await page.perform("why", **query)
    except (ResponseError, *NETWORK_ERRORS) as error:  # a Java broker without accounts gives no answer at all
        problem = str(error)
    return page.show("accounts.html", found=found, problem=problem, query=query, answer=answer)


@page("/new-account", "GET", "POST")
async def new_account(page: Page) -> Response:
    """A new account, or a change of an account."""
    if page.is_post:
        form = page.form
        name = form.get("account", "").strip()
        await page.perform(
            "put_account",
            account=name,
            secret_key=form.get("secret_key", ""),
            admin=form.get("admin", "") == "true",
            white_address=form.get("white_address", "").strip(),
            default_topic=form.get("default_topic", ""),
            default_group=form.get("default_group", ""),
            topics=form.get("topics", "").split(),
            groups=form.get("groups", "").split(),
            seen=form.get("seen", ABSENT),
        )
        return page.redirect("accounts", notice=f"Account {name} is kept at all servers.")
    known = None
    if name := page.query.get("account", ""):
        found = await page.perform("accounts")
        known = next((one for one in found.accounts if one.access_key == name), None)
    return page.show("account_form.html", known=known)


@page("/accounts/{account}/delete", "GET", "POST")
async def delete_account(page: Page) -> Response:
    """Delete, with the name typed."""
    name = page.path("account")
    if page.is_post:
        await page.perform("delete_account", account=name, confirm=page.form.get("confirm", ""))
        return page.redirect("accounts", notice=f"Account {name} is deleted.")
    return page.show("delete.html", kind="account", name=name, detail=None)
