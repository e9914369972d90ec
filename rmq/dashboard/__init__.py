"""The dashboard: pages and an HTTP API to see a cluster and to work on it, in a browser.

The dashboard needs the extra `dashboard`. Client and `client.admin` are its only access to a cluster, so that
RocketMQ's own clusters work too. `serve` runs the dashboard; `app` builds it; `operations` holds each action,
for a page and for the API; `access` checks permissions.
"""
