"""The HTML page of `benchmarks.peers`: a chart of bars for each work and durability, without any script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
h2{margin-top:2em}figure{margin:1em 0}figcaption{color:#555}text{font:13px system-ui,sans-serif}
.bar{fill:#9db4c0}.ours{fill:#c8553d}small{color:#555}"""
LEFT, WIDTH, ROW = 150, 460, 28


def chart(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: name, value, and what is written behind it."""
    most = max((value for _, value, _ in bars), default=0.0) or 1.0
    parts = []
    for number, (name, value, label) in enumerate(bars):
        y, width = number * ROW, value / most * WIDTH
        kind = "bar ours" if name.startswith("rmq") else "bar"
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="{kind}" x="{LEFT}" y="{y + 4}" width="{width:.1f}" height="20"/>'
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 18}">{escape(label)}</text>'
        )
    height = ROW * len(bars)
    svg = f'<svg viewBox="0 0 {LEFT + WIDTH + 110} {height}" role="img" aria-label="{escape(title)}">'
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{''.join(parts)}</svg></figure>"


def page(conditions: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    parts = []
    for durability in dict.fromkeys(row["durability"] for row in rows):
        parts.append(f"<h2>{escape(durability).capitalize()}</h2>")
        within = [row for row in rows if row["durability"] == durability]
        for work in dict.fromkeys(row["work"] for row in within):
            chosen = [row for row in within if row["work"] == work]
            cpu = [(row["broker"], row["cpu_us"], f"{row['cpu_us']:.1f}") for row in chosen]
            rate = [(row["broker"], row["rate"], f"{row['rate']:,.0f}") for row in chosen]
            parts.append(f"<h3>{escape(work)}</h3>")
            parts.append(chart("CPU µs of the broker for a message: less is better", cpu))
            parts.append(chart("messages a second", rate))
            latencies = [row for row in chosen if row.get("latency")]
            for name in latencies[0]["latency"] if latencies else ():
                bars = [(row["broker"], row["latency"][name] / 1000) for row in latencies]
                shown = [(broker, value, f"{value:.2f}") for broker, value in bars]
                parts.append(chart(f"latency of a message, {name}, ms: less is better", shown))
            if memory := [(row["broker"], row["memory"]) for row in chosen if row.get("memory")]:
                own = [(broker, value, f"{value:.0f}") for broker, value in memory]
                parts.append(chart("memory of its own after it, MiB: less is better", own))
        words = dict.fromkeys((row["broker"], row["words"]) for row in within)
        listed = "".join(f"<li>{escape(name)}: {escape(text)}</li>" for name, text in words)
        parts.append(f"<small>What an acknowledgement means:<ul>{listed}</ul></small>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>rmq beside other brokers</title>'
        f"<style>{STYLE}</style><h1>rmq beside other brokers</h1><p>{escape(conditions)}</p>"
        f"{''.join(parts)}</html>\n"
    )
