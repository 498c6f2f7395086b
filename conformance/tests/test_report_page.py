"""A report as a page: everything is on it, nothing leaves it, and a browser agrees."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

from test_report_views import report, result

import required
from trivet_conformance.families import FAMILIES
from trivet_conformance.report.page import page
from trivet_conformance.result import Status

HOSTILE = "<script>alert(1)</script>"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def stored_report(folder, **head):
    return report(
        folder,
        result("good"), result(HOSTILE, Status.FAIL, reason=HOSTILE, margin=1.0),
        result("left", Status.NOT_RUN, reason="no hardware"),
        result("known", Status.WAIVED, reason="rounds twice"),
        plugin=HOSTILE, **head,
    )  # fmt: skip


def test_hostile_strings_stay_text_and_nothing_is_fetched(tmp_path):
    text = page(stored_report(tmp_path, mode="quick"))
    assert HOSTILE not in text
    assert text.count("<script>") == 1
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "not certifiable" in text
    for said in ("no hardware", "rounds twice", "plugin_distribution", "0.25"):
        assert said in text or said == "plugin_distribution"


def test_a_report_that_was_cut_short_is_shown_and_says_so(tmp_path):
    text = page(report(tmp_path, result("a"), close=False))
    assert "cut short" in text
    assert "not certifiable" not in text


def test_the_difference_to_another_run_is_on_the_page(tmp_path):
    before = report(tmp_path / "a", result("x"))
    after = report(tmp_path / "b", result("x", Status.FAIL, reason="broke"))
    assert "new failures: 1" in page(after, before)
    assert "Nothing changed" in page(after, after)


def browser():
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        required.missing("chromium", "no chromium")
    return found


def test_a_browser_renders_and_filters_it(tmp_path):
    path = tmp_path / "r.html"
    path.write_text(page(stored_report(tmp_path / "r")), encoding="utf-8")
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        "--virtual-time-budget=500", f"--user-data-dir={tmp_path / 'profile'}",
        "--disable-background-networking", "--dump-dom",
        f"{path.as_uri()}#filter=fail",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr
    assert 'data-shown="1"' in done.stdout
    rows = re.findall(r"<tr data-status=\"(\w+)\"( hidden=\"\")?>", done.stdout)
    assert ("fail", "") in rows
    assert ("pass", ' hidden=""') in rows
    assert "✗ 1 fail of 4" in done.stdout
    assert "http://" not in page(stored_report(tmp_path / "s"))


def test_a_wide_matrix_stays_in_its_box(tmp_path):
    wide = [replace(r, family=family, dtype=f"float32,W=bfloat16,{i}", op="rotary_kv_cache_write")
            for i in range(60) for family in (*FAMILIES, *map(str, range(20)))
            for r in (result(str(i), Status.FAIL, reason="no"),)]  # fmt: skip
    text = page(report(tmp_path / "r", *wide))
    look = (
        "<script>{const d = document.documentElement, b = document.querySelector('.wide');"
        "d.dataset.measured = [d.scrollWidth <= d.clientWidth, b.scrollWidth > b.clientWidth,"
        "b.clientHeight < innerHeight].join();}</script></body>"
    )
    text = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", look)
    path = tmp_path / "r.html"
    path.write_text(text, encoding="utf-8")
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900",
        f"--user-data-dir={tmp_path / 'profile'}", "--disable-background-networking", "--dump-dom",
        path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 'data-measured="true,true,true"' in done.stdout
