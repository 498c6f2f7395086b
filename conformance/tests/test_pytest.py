"""The kit under pytest: the same checks, and nothing at all in other people's projects."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trivet_conformance import pytester

LIGHT = "import sys, trivet_conformance.pytester as p; print([n for n in sys.modules if n in {!r}])"


def run_pytest(folder, *arguments):
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path):
    """Another project, with a test of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n\ndef test_own(request):\n"
        "    assert 'torch' not in sys.modules\n"
        "    assert not hasattr(request.config.option, 'trivet_plugin')\n"
    )
    return tmp_path


def test_every_check_is_an_item_with_its_id(project):
    done = run_pytest(
        project, "-p", "trivet_conformance.pytester", "--pyargs", "trivet_conformance",
        "--trivet-plugin=reference", "--trivet-op=embedding", "--trivet-quick", "-v",
        "-rs", "-k", "embedding and (meta or stream)",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trivet_conformance::meta/embedding/reference/functional:float32" in done.stdout
    assert "PASSED" in done.stdout
    assert "not_supported: torch knows no streams" in done.stdout


def test_a_run_in_which_nothing_was_judged_is_no_success(project):
    done = run_pytest(
        project, "-p", "trivet_conformance.pytester", "--pyargs", "trivet_conformance",
        "--trivet-plugin=reference", "--trivet-op=embedding", "--trivet-family=stream",
    )  # fmt: skip
    assert "skipped" in done.stdout
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_failure_is_its_reason_and_the_command(project):
    (project / "conftest.py").write_text(
        "from trivet_conformance.result import Finding, Status\n"
        "from trivet_conformance.families import meta\n\n"
        "meta.complaints = lambda *a: ['it is upside down']\n"
    )
    done = run_pytest(
        project, "-p", "trivet_conformance.pytester", "--rootdir", ".", "-c", "pytest.ini",
        "--pyargs", "trivet_conformance", "--trivet-plugin", "reference", "--trivet-quick",
        "--trivet-op=embedding", "--trivet-family=meta", "-x",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fail: it is upside down" in done.stdout
    assert "trivet-conformance run --plugin reference --seed 0 --case " in done.stdout
    assert "Traceback" not in done.stdout


def test_what_is_missing_is_told(project):
    words = ("-p", "trivet_conformance.pytester", "--pyargs", "trivet_conformance")
    done = run_pytest(project, *words)
    assert done.returncode != 0
    assert "--trivet-plugin=NAME" in done.stdout
    done = run_pytest(project, *words, "--trivet-plugin=nobody")
    assert done.returncode != 0
    assert "nobody" in done.stdout


def test_another_project_sees_nothing_of_it(project):
    without = run_pytest(project, "-p", "no:trivet_conformance.pytester", "--help").stdout
    with_it = run_pytest(project, "-p", "trivet_conformance.pytester", "--help").stdout
    assert "trivet" not in with_it
    assert with_it == without
    done = run_pytest(project, "-p", "trivet_conformance.pytester", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_module_that_pytest_loads_is_light():
    text = LIGHT.format(["torch", "trivet", "_pytest", "hypothesis", "rich", "click"])
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["tests", "-k", "trivet_conformance_x"], False),
        (["--trivet-plugin", "cpu"], True),
        (["--pyargs", "trivet_conformance"], True),
        (["--trivet-plugin=cpu"], True),
        ([], False),
    ],
)
def test_only_a_command_line_for_the_kit_loads_it(words, wanted):
    assert pytester.asked(words) is wanted
