"""The command line as people and scripts meet it: words, streams, formats, exit codes."""

import csv
import io
import json
import os
import pty
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from whaleflux.client.cli.details import run_lines, workload_lines
from whaleflux.client.cli.explain import explanation_lines
from whaleflux.client.cli.lists import GPU_COLUMNS, NODE_COLUMNS, job_columns, run_columns
from whaleflux.client.cli.main import cli, main
from whaleflux.client.cli.shape import job_row, node_row, run_row
from whaleflux.client.cli.table import Column, cell_width, render, text
from whaleflux.client.cli.terminal import duration

PIPELINE = "wl_kx3v7fjq2m5zr6yhw4tbn8cpda"
NOW = datetime(2026, 1, 31, 8, 0, 0, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"
DEADLINE_S = 20.0


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; return exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def _golden(name: str, lines: list[str]) -> None:
    file = GOLDEN / f"{name}.txt"
    found = "\n".join(line.rstrip() for line in lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [None, 80, 120])
def test_tables_look_as_they_were_shown_to_customers(busy: Any, width: int | None) -> None:
    jobs = [job_row(w) for w in busy.workloads.values()]
    runs = [run_row(r) for r in busy.runs.values()]
    nodes = [node_row(n) for n in busy.nodes]
    lines: list[str] = []
    for rows, columns in (
        (jobs, job_columns(NOW)),
        (runs, run_columns(NOW)),
        (nodes, NODE_COLUMNS),
        (busy.gpus, GPU_COLUMNS),
    ):
        shown = [c for c in columns if not c.wide]
        lines += [*render(rows, shown, width=width, headings=True), ""]
    if width is not None:
        assert max(cell_width(line) for line in lines) <= width
    _golden(f"tables_{width or 'piped'}", lines)


def test_details_look_as_they_were_shown_to_customers(busy: Any) -> None:
    run = busy.runs[f"{PIPELINE}-rollout-3"]
    lines = [*workload_lines(busy.workloads[PIPELINE], NOW), "", *run_lines(run, NOW)]
    lines += ["", *explanation_lines(busy.explanations[PIPELINE])]
    _golden("details", lines)


def test_simulated_devices_are_marked_in_every_table(busy: Any, run: Any) -> None:
    for arguments in (["jobs"], ["runs", PIPELINE], ["nodes"], ["gpus"], ["get", PIPELINE]):
        assert "simulated" in run(*arguments)[1], arguments


def test_lists_come_in_every_format_with_the_same_keys(busy: Any, run: Any) -> None:
    as_json = json.loads(run("jobs", "--json")[1])
    as_lines = [json.loads(line) for line in run("jobs", "-o", "jsonl")[1].splitlines()]
    as_yaml = yaml.safe_load(run("jobs", "-o", "yaml")[1])
    as_csv = list(csv.DictReader(io.StringIO(run("jobs", "-o", "csv")[1])))
    names = run("jobs", "-o", "name")[1].split()
    assert as_json == as_lines
    assert [w["id"] for w in as_yaml] == [w["id"] for w in as_csv] == names == [*busy.workloads]
    assert as_csv[0]["active_phases"] == "rollout #3"
    assert set(as_csv[0]) <= set(as_json[0])


def test_fields_headings_and_limits_are_as_asked_for(busy: Any, run: Any) -> None:
    code, out, _ = run("jobs", "--fields", "state,name", "--no-headers", "--limit", "1")
    assert (code, out) == (0, "running  rft-demo\n")
    assert run("jobs", "--state", "failed", "-o", "name")[1] == "wl_b7n4wzr2t6ykq3m5vhc8jxdpga\n"
    assert json.loads(run("gpus", "--free", "--json", "--fields", "index")[1])[0] == {"index": 2}


def test_an_empty_list_is_words_for_people_and_data_for_programs(stub: Any, run: Any) -> None:
    assert run("jobs") == (
        0,
        "",
        "No workloads. Hand one in with 'whaleflux submit FILE'.\n",
    )
    assert run("jobs", "--json") == (0, "[]\n", "")


def test_nothing_is_cut_or_coloured_when_it_is_piped(busy: Any, run: Any) -> None:
    busy.workload("wl_long", name="n" * 60, reason="r" * 300)
    out = run("jobs", "-o", "wide")[1]
    assert "n" * 60 in out
    assert "r" * 300 in out
    assert "\x1b" not in out


def test_submitting_prints_the_id_alone_on_stdout(stub: Any, run: Any, tmp_path: Path) -> None:
    code, out, err = run("submit", str(_file(tmp_path, "run: echo hi\n")))
    assert code == 0
    assert out.strip() in stub.workloads
    assert stub.workloads[out.strip()]["name"] == "job"
    assert f"whaleflux logs -f {out.strip()}" in err


def test_submitting_takes_changes_and_a_folder_along(stub: Any, run: Any, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    file = _file(tmp_path, "name: x\nrun: python train.py\nworkdir: code\n")
    arguments = ["submit", str(file), "--name", "y", "-e", "A=1", "--set", "priority=5"]
    code, out, err = run(*arguments)
    spec = stub.workloads[out.strip()]["spec"]
    assert code == 0
    assert (spec["name"], spec["envs"], spec["priority"]) == ("y", {"A": "1"}, 5)
    assert spec["workdir"] == f"sha256:{next(iter(stub.blobs))}"
    assert "Uploaded" in err
    assert "is unchanged" in run(*arguments)[2]


def test_a_dry_run_sends_no_workload(stub: Any, run: Any, tmp_path: Path) -> None:
    code, out, err = run("submit", str(_file(tmp_path, "run: x\n")), "--dry-run")
    assert code == 0
    assert yaml.safe_load(out)["run"] == "x"
    assert "by the gateway" in err
    assert stub.paths("POST") == ["/v1/validate"]


def test_a_wrong_file_is_refused_here_with_line_and_column(
    stub: Any, run: Any, tmp_path: Path
) -> None:
    file = _file(tmp_path, "name: x\nrun: a\nresorces: {}\n")
    code, out, err = run("submit", str(file))
    assert (code, out) == (1, "")
    assert err.startswith(f"{file}:3:1: resorces:")
    assert "whaleflux explain --field" in err
    assert stub.asked == []


def test_validate_works_without_a_gateway(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WHALEFLUX_URL", raising=False)
    code, _, err = run("validate", str(_file(tmp_path, "run: x\n")))
    assert code == 0
    assert "checked here only" in err


@pytest.mark.parametrize(
    ("state", "code"),
    [("succeeded", 0), ("failed", 10), ("cancelled", 11), ("preempted", 12), ("lost", 12)],
)
def test_wait_and_logs_share_the_exit_codes_of_the_end(
    stub: Any, run: Any, state: str, code: int
) -> None:
    stub.workload("wl_1", state=state, reason="because", ended_at="2026-01-31T08:01:00+00:00")
    key = (stub.run("wl_1", state=state), 1, 0)
    stub.logs[key] = "hello\nend without newline"
    stub.log_ended.add(key)
    assert run("wait", "wl_1")[:2] == (code, f"{state}\n")
    assert run("logs", "-f", "wl_1") == (
        code,
        "hello\nend without newline\n",
        f"train {state} after 1m: because\n",
    )


def test_waiting_too_long_and_other_ends_have_their_own_codes(
    stub: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.workload("wl_1")
    assert run("wait", "wl_1", "--timeout", "0.05")[0] == 8
    assert run("get", "nothing")[0] == 3
    monkeypatch.setenv("WHALEFLUX_API_KEY", "wrong")
    code, _, err = run("jobs")
    assert code == 4
    assert "Request id: req-7" in err
    assert "Next: " in err
    assert run("jobs", "-o", "nonsense")[0] == 2


def test_nobody_there_is_said_with_what_to_do(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from whaleflux.client import retry

    monkeypatch.setattr(retry, "ATTEMPTS_MAX", 1)
    monkeypatch.setenv("WHALEFLUX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WHALEFLUX_API_KEY", "x")
    code, out, err = run("jobs")
    assert (code, out) == (6, "")
    assert "http://127.0.0.1:9" in err
    assert "whaleflux up" in err


def test_logs_of_several_phases_say_whose_line_it_is(stub: Any, run: Any) -> None:
    stub.workload("wl_1", kind="pipeline", state="running")
    for phase in ("rollout", "update"):
        stub.logs[(stub.run("wl_1", phase), 1, 0)] = f"{phase} says\nmore\n"
    out = run("logs", "wl_1")[1]
    assert out.splitlines() == [
        "rollout #1 | rollout says",
        "rollout #1 | more",
        "update #1 | update says",
        "update #1 | more",
    ]
    assert run("logs", "wl_1", "--phase", "update")[1].count("\n") == 2


def test_events_are_one_line_each_and_filtered_by_type(stub: Any, run: Any) -> None:
    stub.events = [
        {"seq": 1, "type": "io.whaleflux.run.queued.v1", "subject": "r", "data": {}},
        {"seq": 2, "type": "io.whaleflux.run.placed.v1", "subject": "r"}
        | {"time": "2026-01-31T08:00:00Z", "data": {"why": "free", "simulated": True}},
    ]
    out = run("events", "--type", "run.placed")[1]
    assert out == "      2  08:00:00  run.placed            r  free  (simulated)\n"
    assert json.loads(run("events", "--since", "1", "--json")[1])["sequence"] == 2


def test_explain_shows_the_funnel_and_what_would_help(busy: Any, run: Any) -> None:
    _, out, _ = run("explain", "rft-demo")
    assert "Needs 4 H100 on one node" in out
    assert "It would start now if" in out
    assert json.loads(run("explain", "rft-demo", "--json")[1])["code"] == "NO_CAPACITY"


def test_fields_of_a_workload_file_are_described(run: Any) -> None:
    assert "H100" in run("explain", "--field", "resources.accelerators")[1]
    code, _, err = run("explain", "--field", "resources.acelerators")
    assert code == 1
    assert "'resources.accelerators'" in err


def test_an_unknown_command_suggests_the_nearest(run: Any) -> None:
    code, _, err = run("sumbit", "x")
    assert code == 2
    assert "Did you mean 'submit'?" in err


def test_every_command_has_its_help() -> None:
    runner = CliRunner()
    with click.Context(cli) as context:
        names = cli.list_commands(context)
    assert {"submit", "jobs", "logs", "explain", "completion"} <= set(names)
    for name in names:
        result = runner.invoke(cli, [name, "--help"])
        assert result.exit_code == 0, name
        assert "Usage:" in result.output


def test_contexts_are_kept_for_the_owner_alone(run: Any, stub: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("wf_test_key\n")
    assert run("config", "set", "lab", "--url", stub.url, "--api-key-file", str(key))[0] == 0
    file = tmp_path / "config" / "whaleflux" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    os.environ.pop("WHALEFLUX_URL")
    assert run("jobs", "--json") == (0, "[]\n", "")
    assert run("--context", "lab", "config", "show", "--check", "-o", "json")[0] == 0
    code, _, err = run("--context", "lap", "jobs")
    assert code == 1
    assert "lab" in err
    assert "wf_test_key" not in run("config", "show")[1]
    assert run("config", "remove", "lab")[0] == 0
    assert "No gateways" in run("config", "list")[2]


def test_commands_of_other_packages_are_found_and_a_broken_one_hurts_nobody(
    tmp_path: Path,
) -> None:
    (tmp_path / "extra_verbs.py").write_text(
        "import click\n@click.command()\ndef hello():\n    '''Say hello.'''\n    click.echo('hi')\n"
    )
    info = tmp_path / "extra-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[whaleflux.commands]\nhello = extra_verbs:hello\nbroken = nothing_there:x\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert _whaleflux("hello", env=env).stdout == "hi\n"
    shown = _whaleflux("--help", env=env)
    assert "Say hello." in shown.stdout
    assert shown.returncode == 0
    assert _whaleflux("broken", env=env).returncode == 1


def test_completion_prints_a_script() -> None:
    assert "_WHALEFLUX_COMPLETE" in _whaleflux("completion", "zsh").stdout


def test_a_closed_pipe_is_no_error_message(busy: Any) -> None:
    for i in range(3_000):
        busy.workload(f"wl_{i}", name="x" * 60)
    found = subprocess.run(
        f"{shlex.quote(sys.executable)} -m whaleflux.client.cli jobs -o jsonl | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert found.stderr == ""
    assert found.stdout.count("\n") == 1


def test_control_c_detaches_and_says_that_the_work_goes_on(stub: Any) -> None:
    stub.workload("wl_1")
    asked = threading.Event()
    stub.on_request = lambda _method, path: asked.set() if path.endswith("/runs") else None
    process = subprocess.Popen(
        [sys.executable, "-m", "whaleflux.client.cli", "logs", "-f", "wl_1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asked.wait(DEADLINE_S)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "goes on" in err
    assert "Traceback" not in err


def test_a_watched_list_prints_only_what_changes_when_it_is_piped(
    stub: Any,
) -> None:
    stub.workload("wl_1", name="still", state="running")
    stub.workload("wl_2", name="moving", state="queued")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "whaleflux.client.cli", "jobs", "-w", "-o", "jsonl"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline())["id"] for _ in range(2)]
    stub.workload("wl_2", name="moving", state="running")
    changed = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=DEADLINE_S)
    assert seen == ["wl_1", "wl_2"]
    assert (changed["id"], changed["state"], rest) == ("wl_2", "running", "")
    assert process.returncode == 130


def test_a_workload_may_come_by_standard_input(stub: Any) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "whaleflux.client.cli", "submit", "-", "--json"],
        input="name: piped\nrun: x\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert json.loads(found.stdout)["name"] == "piped"


def test_a_terminal_gets_colours_and_its_own_width(busy: Any) -> None:
    assert "\x1b[" in _on_terminal(["jobs"], {})
    plain = _on_terminal(["jobs"], {"NO_COLOR": "1"})
    assert "\x1b[" not in plain
    assert max(len(line) for line in plain.splitlines()) <= 80


def test_starting_imports_nothing_heavy() -> None:
    code = (
        "import sys; from whaleflux.client.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'httpx', 'pydantic', 'yaml', 'tenacity', 'rich', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert found.returncode == 0, found.stderr


def test_cells_cannot_move_the_cursor() -> None:
    rows = [{"name": "a\x1b[2Jb\nc"}]
    assert render(rows, [Column("name", "NAME", text("name"))], width=None, headings=False) == [
        "a [2Jb c"
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0, "0s"),
        (0.25, "250ms"),
        (59, "59s"),
        (60, "1m"),
        (3_725, "1h02m"),
        (90_000, "1d01h"),
        (304 * 86_400, "304d"),
    ],
)
def test_durations_are_short(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def _file(folder: Path, content: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(content)
    return file


def _whaleflux(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whaleflux.client.cli", *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=DEADLINE_S,
    )


def _on_terminal(arguments: list[str], more: dict[str, str]) -> str:
    """Run the command line on a pseudo terminal of 80 columns; return what it drew."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm", **more}
    process = subprocess.Popen(
        [sys.executable, "-m", "whaleflux.client.cli", *arguments],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:
            break
        if not piece:
            break
        drawn += piece
    os.close(ours)
    process.wait(DEADLINE_S)
    return drawn.decode().replace("\r\n", "\n")
