"""The command as a process of its own, with a small real model."""

from __future__ import annotations

import builtins
import re
import signal
import subprocess
import sys
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
            assert facts["cache"]["blocks_free"] == facts["cache"]["blocks"] > 0
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0
            assert child.stderr.read() == ""
        finally:
            child.kill()


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
