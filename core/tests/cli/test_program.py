from __future__ import annotations

import os
import pty
import subprocess
import sys

import click.testing
import pytest

from trivet.cli import ab as ab_command
from trivet.cli import commands, doctor, explain, findings, ops, plan
from trivet.cli.program import program

POINTS = "[trivet.commands]\n{name} = {module}:command\n"
GOOD = (
    "import click\n@click.command()\n@click.option('--n')\ndef command(n): click.echo(f'n={n}')\n"
)
COMMANDS = (
    (doctor.command, findings.KEYS),
    (ops.command, ops.KEYS),
    (explain.command, explain.KEYS),
    (plan.command, plan.KEYS),
    (ab_command.command, ab_command.KEYS),
)


def bring(dists, name: str, source: str, *, dist: str = "extra-dist") -> None:
    module = f"fake_{dist.replace('-', '_')}"
    (dists.folder / f"{module}.py").write_text(source)
    dists.write(dist, POINTS.format(name=name, module=module))


def test_help_lists_every_command_and_imports_none(cli, dists):
    bring(dists, "grow", "raise SystemExit('imported')")
    text = cli("--help").stdout
    for name, (_, does) in commands.OWN.items():
        assert f"  {name}" in text
        assert does in text
    assert "grow     From extra-dist 1.0." in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_command_of_a_package_is_run(cli, dists):
    bring(dists, "grow", GOOD)
    assert cli("grow", "--n", "3").stdout == "n=3\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_module_", "ModuleNotFoundError: No module named 'no_such_module_'"),
        ("import sys; sys.exit(5)", "SystemExit: 5"),
        ("command = 3", "is a int, no click command"),
    ],
)
def test_a_broken_command_is_named_and_breaks_no_other(cli, dists, source, why):
    bring(dists, "grow", source)
    for args in (["grow"], ["grow", "--help"], ["grow", "--n", "3", "x"]):
        result = cli(*args, code=2)
        assert "the command 'grow' of extra-dist 1.0" in result.stderr
        assert why in result.stderr
    assert "rms_norm" in cli("ops").stdout


def test_a_name_claimed_twice_is_refused_naming_both(cli, dists):
    bring(dists, "grow", GOOD)
    bring(dists, "grow", GOOD, dist="other-dist")
    text = cli("grow", code=2).stderr
    assert "extra-dist 1.0" in text
    assert "other-dist 1.0" in text


def test_no_package_takes_the_name_of_an_own_command(cli, dists):
    bring(dists, "ops", GOOD)
    assert "rms_norm" in cli("ops").stdout
    found = cli.json("doctor", code=1)
    assert "has the name of one of trivet's own" in found["commands"][0]["error"]


def test_an_unknown_command_lists_near_misses(cli):
    assert "no command 'exlain'; did you mean explain" in cli("exlain", code=2).stderr


def test_a_variable_that_means_nothing_is_told_by_every_command(cli, acme, monkeypatch):
    monkeypatch.setenv("TRIVET_PROVIDER", "rms_norm=reference")
    line = "trivet: no variable TRIVET_PROVIDER exists; did you mean TRIVET_PROVIDERS"
    for args in (["ops"], ["explain", "rms_norm"]):
        (said,) = cli(*args).stderr.splitlines()
        assert said.startswith(line)


def test_an_error_is_one_message_on_stderr(cli, acme):
    result = cli("explain", "rms_nrm", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("trivet: no operator 'rms_nrm'\n  fix: use one of rms_norm")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("command", "keys"), COMMANDS, ids=[c.name for c, _ in COMMANDS])
def test_help_documents_every_key_within_80_columns(command, keys):
    text = click.testing.CliRunner().invoke(program, [command.name, "--help"]).stdout
    documented = text.partition("Keys of --json:")[2]
    for key, meaning in keys.items():
        assert any(line.split()[:1] == [key] for line in documented.splitlines()), key
        assert meaning in documented
    assert max(map(len, text.splitlines())) <= 80


# --- as a process ----------------------------------------------------------------------------


def test_without_the_extra_it_says_how_to_get_it(shell):
    for missing in ("click", "rich"):
        code = f"import sys; sys.modules[{missing!r}] = None; import trivet.cli; trivet.cli.main()"
        done = shell("-c", code)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "pip install 'trivet[cli]'" in done.stderr


def test_a_module_missing_elsewhere_is_not_blamed_on_the_extra(shell):
    code = "import sys; sys.modules['difflib'] = None; import trivet.cli; trivet.cli.main()"
    done = shell("-c", code)
    assert "difflib" in done.stderr
    assert "trivet[cli]" not in done.stderr


def test_in_a_pipe_there_are_80_columns_and_no_codes(shell, acme):
    done = shell("-m", "trivet", "explain", "rms_norm", "--fact", "hidden=570", FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "hidden = 570 is not a multiple of 8" in done.stdout


def test_a_name_that_the_output_cannot_encode_is_no_crash(shell, acme):
    path = acme.folder / "fake_acme_dist.py"
    path.write_text(path.read_text().replace("Acme One", "Acme \N{SNOWMAN}"), encoding="utf-8")
    done = shell("-m", "trivet", "doctor", PYTHONIOENCODING="latin-1")
    assert "Acme \\u2603" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_and_no_color_turns_it_off(acme, environ, coloured):
    ours, theirs = pty.openpty()
    clean = {n: v for n, v in os.environ.items() if n != "NO_COLOR"}
    clean |= {"PYTHONPATH": str(acme.folder), "TRIVET_ALLOW": "acme", "TERM": "xterm", **environ}
    command = [sys.executable, "-m", "trivet", "explain", "sample_token"]
    done = subprocess.run(command, env=clean, stdout=theirs, stderr=subprocess.PIPE, check=True)
    os.close(theirs)
    text = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "acme/raises" in text, done.stderr
    assert ("\x1b[" in text) == coloured
