"""A report as JUnit XML, for what reads nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET

from trivet_conformance.result import BAD, Status

_SKIPPED: Final = frozenset({Status.NOT_RUN, Status.NOT_SUPPORTED, Status.WAIVED})
_ERRORS: Final = frozenset({Status.ERROR, Status.CRASH, Status.TIMEOUT})
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(rows: Iterable[Mapping[str, Any]]) -> str:
    """JUnit XML of the lines of a report.

    ``error``, ``crash`` and ``timeout`` are errors, what else makes a run fail is a failure,
    ``not_run``, ``not_supported`` and ``waived`` are skipped; each with its status and reason.
    """
    rows = list(rows)
    head = next((r for r in rows if r["kind"] == "run"), {})
    results = [r for r in rows if r["kind"] == "result"]
    suite = ET.Element("testsuite", {"name": clean(f"trivet-conformance {head.get('plugin', '')}")})
    properties = ET.SubElement(suite, "properties")
    for name in ("suite", "mode", "execution", "seed", "trivet", "torch", "date"):
        if head.get(name) not in {None, ""}:
            value = {"name": name, "value": clean(str(head[name]))}
            ET.SubElement(properties, "property", value)
    tally = {"tests": len(results), "failures": 0, "errors": 0, "skipped": 0}
    for row in results:
        kind = _add(suite, row)
        if kind:
            tally[kind] += 1
    seconds = sum(float(r.get("seconds", 0.0)) for r in results)
    suite.attrib.update({k: str(v) for k, v in tally.items()} | {"time": f"{seconds:.3f}"})
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ET.Element, row: Mapping[str, Any]) -> str:
    """Adds a case; gives the count that it belongs to, nothing for a pass."""
    where = f"{row['family']}.{row['operator']}.{row['provider']}"
    name = str(row["id"]).removeprefix(f"{row['family']}/{row['operator']}/{row['provider']}/")
    values = {"classname": where, "name": name, "time": f"{float(row.get('seconds', 0.0)):.3f}"}
    case = ET.SubElement(suite, "testcase", {k: clean(v) for k, v in values.items()})
    status = Status(row["status"])
    if status in _SKIPPED:
        tag, count = "skipped", "skipped"
    elif status in _ERRORS:
        tag, count = "error", "errors"
    elif status in BAD:
        tag, count = "failure", "failures"
    else:
        return ""
    message = clean(f"{status}: {row['reason']}".rstrip(": "))
    found = ET.SubElement(case, tag, {"message": message})
    if tag != "skipped":
        found.set("type", status.value)
        found.text = clean(f"{row['reason']}\n{row['repro']}")
    return count


def clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _ILLEGAL.sub("\ufffd", text)
