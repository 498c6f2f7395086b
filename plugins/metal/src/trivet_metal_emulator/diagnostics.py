"""What clang says, as findings."""

from __future__ import annotations

import re

from trivet_metal_emulator.errors import Finding

__all__ = ["explain", "warnings_of"]

_LINE = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):\d+: (?:fatal )?(?P<kind>error|warning): "
    r"(?P<what>.*)$",
    re.MULTILINE,
)
_OWN = ("/runtime/metal/", "wrappers")
_SPACE = re.compile(r"address_space\(|'[^']*\b(?:device|constant|threadgroup)\b[^']*'")
_CONVERSIONS = (
    "cannot initialize a variable",
    "cannot initialize a parameter",
    "cannot initialize return object",
    "cannot initialize a member",
    "assigning to",
    "incompatible",
    "reinterpret_cast from",
    "static_cast from",
)
_SPACES = {
    "__attribute__((address_space(1)))": "device",
    "__attribute__((address_space(2)))": "constant",
    "__attribute__((address_space(3)))": "threadgroup",
}


def _words(what: str) -> str:
    for attribute, word in _SPACES.items():
        what = what.replace(attribute, word)
    return what.replace("const constant", "constant").replace("trivet_msl::", "")


def explain(text: str) -> list[Finding]:
    """The errors of a compilation."""
    found = []
    for m in _LINE.finditer(text):
        if m["kind"] != "error":
            continue
        what, kind, fix = _words(m["what"]), "syntax", ""
        if "poisoned identifier" in what:
            kind, what = "double", "Metal has no double"
            fix = "use float; a literal without suffix is float"
        elif "file not found" in what:
            kind = "header"
        found.append(Finding(kind, what, m["file"], int(m["line"]), fix))
    return found or [Finding("syntax", text.strip()[-2000:])]


def warnings_of(text: str) -> list[Finding]:
    """What the pass with address spaces found; what only C++ minds is left out."""
    found = []
    for m in _LINE.finditer(text):
        if any(own in m["file"] for own in _OWN):
            continue
        what = m["what"]
        if "implicit conversion" in what:
            if "to '__bf16'" in what or "(aka '__bf16')" in what.rpartition(" to ")[2]:
                found.append(Finding(
                    "bfloat", "Metal converts nothing to bfloat by itself", m["file"],
                    int(m["line"]), "write bfloat(...), or T(...) in a template",
                ))  # fmt: skip
        elif m["kind"] == "warning":
            short = re.sub(r" \[-W.*\]$", "", what)
            found.append(Finding(
                "newer-language", short, m["file"], int(m["line"]),
                "Metal before version 4 is C++14", "warning",
            ))  # fmt: skip
        elif _about_spaces(what):
            found.append(Finding(
                "address-space", _words(what), m["file"], int(m["line"]),
                "name the memory that the pointer points to: device, constant, threadgroup, thread",
            ))  # fmt: skip
    return list({(one.kind, one.file, one.line): one for one in found}.values())


def _about_spaces(what: str) -> bool:
    if "changes address space" in what or "mismatching address spaces" in what:
        return True
    return bool(_SPACE.search(what)) and what.startswith(_CONVERSIONS)
