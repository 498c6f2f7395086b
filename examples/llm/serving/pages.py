"""How the server is doing: as JSON, as a page for people, and in the text format of Prometheus."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llm.serving.engine_thread import Worker

_STYLE = "body{font:16px system-ui;margin:2em}td{padding:.2em 1em}td:first-child{color:#666}"


def health(
    worker: Worker, name: str, facts: dict[str, Any], calls: list[dict[str, Any]]
) -> dict[str, Any]:
    """State, load and speed; ``facts`` of device and versions stand beside them.

    ``calls``: how often which implementation ran at each site; empty unless it is counted.
    """
    ran: dict[str, dict[str, int]] = {}
    for row in calls:
        ran.setdefault(row["site"], {})[row["implementation"]] = row["calls"]
    now = worker.status
    return {
        "state": now.state,
        **({"error": now.error} if now.error else {}),
        "model": name,
        **facts,
        "requests": {"waiting": now.waiting, "running": now.running, "ended": now.outcomes},
        "cache": {"blocks_free": now.blocks_free, "blocks": now.blocks},
        "cache_use": asdict(now.usage),
        "steps": now.steps,
        "tokens": now.tokens,
        "tokens_per_second": round(worker.speed(), 1),
        **({"calls": ran} if ran else {}),
    }


def page(facts: dict[str, Any]) -> str:
    """The same as a table, and one of the sites."""
    rows = "".join(_row(key, _words(value)) for key, value in facts.items() if key != "sites")
    sites = "".join(
        _row(name, site["operator"], provider, why)
        for name, site in facts.get("sites", {}).items()
        for provider, why in site["implementations"].items()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>"
        f"<title>{html.escape(str(facts['model']))}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(str(facts['model']))}</h1><table>{rows}</table><h2>what is bound</h2>"
        f"<table>{_row('site', 'operator', 'implementation', 'why')}{sites}</table>"
        "<p>POST /v1/chat/completions, POST /v1/completions, GET /v1/models, "
        "<a href=/health>/health</a>, <a href=/metrics>/metrics</a></p></html>"
    )


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k.replace('_', ' ')} {_words(v)}" for k, v in value.items()) or "none"
    return str(value)


def metrics(
    worker: Worker, calls: list[dict[str, Any]], memory: Mapping[str, int] | None = None
) -> str:
    """Gauges and counters; ``calls``: of each implementation at each site; ``memory``: by tag."""
    now = worker.status
    gauges = {
        "llm_up": int(now.state == "running"),
        "llm_requests_waiting": now.waiting,
        "llm_requests_running": now.running,
        "llm_cache_blocks_free": now.blocks_free,
        "llm_cache_blocks": now.blocks,
    }
    lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in gauges.items()]
    if memory:
        lines.append("# TYPE llm_memory_bytes gauge\n")
        lines += [f"llm_memory_bytes{{tag={_label(t)}}} {n}\n" for t, n in memory.items()]
    counters = {"llm_steps_total": now.steps, "llm_tokens_total": now.tokens}
    counters |= {f"llm_{name}_total": value for name, value in asdict(now.usage).items()}
    lines += [f"# TYPE {name} counter\n{name} {value}\n" for name, value in counters.items()]
    lines.append("# TYPE llm_requests_total counter\n")
    lines += [
        f'llm_requests_total{{outcome="{name}"}} {value}\n' for name, value in now.outcomes.items()
    ]
    if calls:
        lines.append("# TYPE trivet_calls_total counter\n")
    lines += [
        f"trivet_calls_total{{site={_label(row['site'])},"
        f"implementation={_label(row['implementation'])}}} {row['calls']}\n"
        for row in calls
    ]
    return "".join(lines)


def _label(value: str) -> str:
    r"""A quoted label: names come from plugins, and may hold what would end it."""
    return '"' + value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
