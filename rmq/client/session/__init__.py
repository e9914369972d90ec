"""Session of a client, which producers and consumers share: routes, requests, heartbeats, events, health."""
