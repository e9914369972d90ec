"""The dashboard: pages and an HTTP API to see a cluster and to work on it, in a browser.

The dashboard needs the extra `dashboard`. It uses the client and `client.admin`, so it works on RocketMQ's
own clusters too. `serve` runs it; `app` builds it; `operations` holds each action, for a page and for the
API; `access` checks permissions.
"""
