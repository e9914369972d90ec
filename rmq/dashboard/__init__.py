"""The dashboard: pages and an HTTP API to see a cluster and to work on it, in a browser.

It needs the extra `dashboard`. It stands on the client and `client.admin`, so it works on RocketMQ's own
clusters too. `serve` runs it; `app` puts it together; `operations` holds each act once, for a page and for
the API; `access` says who may do what.
"""
