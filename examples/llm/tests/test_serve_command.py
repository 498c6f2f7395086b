"""The command as a process of its own, with a small real model."""

from __future__ import annotations

import builtins
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from llm import cli

LLM = Path(__file__).resolve().parents[1]


def test_it_serves_until_it_is_told_to_stop(tiny, tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf")
    command = [sys.executable, str(LLM), "serve", "--model", str(path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            where = re.fullmatch(r"tiny on (http://\S+)\n", child.stderr.readline()).group(1)
            body = {"prompt": "ab", "max_tokens": 8, "seed": 4, "frequency_penalty": 1}
            first, again = (httpx2.post(where + "/v1/completions", json=body).json() for _ in "ab")
            assert first["choices"] == again["choices"]
            assert first["seed"] == 4
            assert first["usage"]["completion_tokens"] <= 8
            facts = httpx2.get(where + "/health").json()
            assert facts["sites"]["attention"] == {
                "operator": "paged_attention",
                "form": "functional",
                "implementations": {"cpu/vec": "first in the order of its package"},
            }
            assert "paged_attention" in httpx2.get(where).text
            assert facts["cache"]["blocks_free"] == facts["cache"]["blocks"] > 0
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0
            assert child.stderr.read() == ""
        finally:
            child.kill()


HANGING = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from llm.model import Llama
from llm.cli import main
Llama.step = lambda *_: threading.Event().wait()
main(["serve", "--model", sys.argv[2], "--port", "0", "--drain", "0.1"])
"""


def test_a_step_that_hangs_keeps_neither_the_client_nor_the_process(tiny, tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", HANGING, str(LLM.parent), str(path)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child,
        ThreadPoolExecutor() as pool,
    ):
        try:
            where = re.fullmatch(r"tiny on (http://\S+)\n", child.stderr.readline()).group(1)
            body = {"prompt": "ab"}
            asked = pool.submit(httpx2.post, where + "/v1/completions", json=body, timeout=60)
            while not httpx2.get(where + "/health").json()["requests"]["running"]:
                assert not asked.done()
            child.send_signal(signal.SIGTERM)
            assert asked.result().json()["error"]["code"] == "engine_stopped"
            assert child.wait(60) == 0
            assert child.stderr.read() == ""
        finally:
            child.kill()


def test_help_says_defaults_and_which_models():
    shown = {
        name: " ".join(CliRunner().invoke(cli.main, [*name, "--help"]).stdout.split())
        for name in ((), ("serve",))
    }
    for text in shown.values():
        assert "A GGUF file, or a directory with config.json and safetensors" in text
    assert "a directory of safetensors" in shown[()]
    for default in ("64", "256", "1.0", "1048576", "30.0", "8000"):
        assert f"[default: {default}" in shown[("serve",)]
    assert "The same." not in shown[("serve",)]


def test_missing_libraries_are_named_with_the_command_that_brings_them(monkeypatch):
    real = builtins.__import__

    def absent(name, *more):
        if name == "uvicorn":
            raise ModuleNotFoundError("no", name=name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", absent)
    result = CliRunner().invoke(cli.main, ["serve"])
    assert result.exit_code == 2
    assert "the server needs uvicorn" in result.stderr
    assert "pip install" in result.stderr


def test_options_before_the_command_are_not_lost_in_silence():
    result = CliRunner().invoke(cli.main, ["--threads", "1", "serve"])
    assert result.exit_code == 2
    assert "stand after it" in result.stderr


def test_a_port_that_is_taken_is_one_clear_error():
    result = CliRunner().invoke(cli.main, ["serve", "--host", "256.0.0.1"])
    assert result.exit_code == 2
    assert "error: 256.0.0.1:8000 cannot be listened on" in result.stderr


@pytest.mark.parametrize("option", ["--port", "--queue", "--max-body"])
def test_a_bad_option_is_refused_by_name(option):
    assert option in CliRunner().invoke(cli.main, ["serve", option, "-1"]).stderr
