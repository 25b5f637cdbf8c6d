import os
import re
import signal
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from whaleflux.agent.shell.shim_parts.kernel import boottime_s

Make = Callable[..., Any]


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def python(text: str) -> str:
    return "exec python -c '" + textwrap.dedent(text).strip() + "'"


@pytest.mark.parametrize(
    ("code", "kind"), [(0, "done"), (85, "saved"), (93, "do_not_retry"), (7, "failed")]
)
def test_an_exit_code_is_written_with_its_meaning(shim: Make, code: int, kind: str) -> None:
    end = shim(f"exit {code}").end()
    assert (end["kind"], end["exit_code"], end["signal"]) == (kind, code, None)


def test_a_program_ended_by_a_signal_is_reported_with_it(shim: Make) -> None:
    assert shim("kill -SEGV $$").end()["signal"] == signal.SIGSEGV
    end = shim("python -c 'import os; os.kill(os.getpid(), 11)'").end()
    assert (end["kind"], end["signal"]) == ("failed", signal.SIGSEGV)


def test_sigterm_lets_the_program_save_and_keeps_its_exit_code(shim: Make) -> None:
    one = shim(
        python(
            """
            import signal, sys
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
            print("ready", flush=True)
            signal.pause()
            """
        ).removeprefix("exec ")
        + "\necho after"
    )
    one.wait_for("ready")
    one.process.terminate()
    assert one.end()["kind"] == "saved"
    assert "after" not in one.log()


def test_a_program_that_leaves_with_zero_when_told_to_stop_is_stopped_and_not_done(
    shim: Make,
) -> None:
    one = shim("trap 'exit 0' TERM; sleep 100 & echo ready; wait")
    one.wait_for("ready")
    one.process.terminate()
    end = one.end()
    assert (end["kind"], end["exit_code"]) == ("stopped", 0)


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(shim: Make) -> None:
    one = shim("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_s=0.3)
    one.wait_for("ready")
    asked = boottime_s()
    one.process.terminate()
    end = one.end()
    assert (end["kind"], end["signal"]) == ("stopped", signal.SIGKILL)
    assert 0.3 <= end["boottime_s"] - asked < 2.0


def test_a_process_that_sigterm_missed_is_told_again(shim: Make) -> None:
    one = shim(
        python(
            """
            import signal, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ready", flush=True)
            time.sleep(0.3)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pause()
            """
        ),
        grace_s=60,
    )
    one.wait_for("ready")
    asked = boottime_s()
    one.process.terminate()
    assert one.end()["signal"] == signal.SIGTERM
    assert boottime_s() - asked < 10


def test_what_a_program_starts_in_order_to_save_is_left_alone(shim: Make) -> None:
    one = shim("trap 'sleep 0.5; echo saved; exit 85' TERM; sleep 100 & echo ready; wait")
    one.wait_for("ready")
    one.process.terminate()
    assert one.end()["kind"] == "saved"
    assert "saved" in one.log()


def test_daemonised_descendants_die_with_their_member(shim: Make) -> None:
    name = f"300.{os.getpid()}"
    one = shim(
        f'(setsid bash -c \'trap "" TERM; echo daemon $$; (setsid sleep {name} &) ; '
        "exec </dev/null; while :; do sleep 0.1; done' &)\nexec sleep 0.4",
        grace_s=0.2,
    )
    one.wait_for("daemon")
    daemon = int(re.search(r"daemon (\d+)", one.log())[1])  # type: ignore[index]  # no match fails the test
    assert is_alive(daemon)
    assert one.end()["kind"] == "done"
    assert not is_alive(daemon)
    assert name not in "".join(map(command_line, filter(str.isdigit, os.listdir("/proc"))))


def command_line(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_a_program_that_closes_all_its_files_is_still_seen_to_end(shim: Make) -> None:
    one = shim(
        python("import os, time; os.closerange(0, 256); time.sleep(0.2); os._exit(4)"), grace_s=1
    )
    assert one.end()["exit_code"] == 4


def test_ten_megabytes_of_output_are_kept_whole(shim: Make) -> None:
    one = shim(python('print("x" * 99 + "\\n", end="", flush=True); print("y" * 10_000_000)'))
    assert one.end()["kind"] == "done"
    assert len(one.log()) == 100 + 10_000_001


def test_output_past_the_limit_is_dropped_and_said_so_without_blocking(shim: Make) -> None:
    one = shim(python('print("y" * 5_000_000)'), log_bytes_max=10_000)
    end = one.end()
    assert (end["kind"], end["log_truncated"]) == ("done", True)
    assert len(one.log()) < 10_200
    assert "log limit of 10000 bytes" in one.log()


def test_the_member_ends_before_its_fence_deadline_when_nobody_renews(shim: Make) -> None:
    renewed = boottime_s()
    one = shim(
        "trap '' TERM; while :; do sleep 0.05; done",
        renewed_boottime_s=renewed,
        fencing_s=1.2,
        margin_s=0.8,
    )
    end = one.end()
    assert end["kind"] == "fenced"
    assert renewed + 0.4 <= end["boottime_s"] < renewed + 1.2


def test_a_renewal_on_disk_moves_the_fence_deadline(shim: Make) -> None:
    one = shim("sleep 0.9", fencing_s=1.0, margin_s=0.7)
    one.started()
    one.fence.write_text("{ torn")
    one.renew(ago_s=-1.0)
    assert one.end()["kind"] == "done"


def test_a_renewal_of_another_boot_counts_for_nothing(shim: Make) -> None:
    one = shim("exec sleep 100", fencing_s=0.6, margin_s=0.4)
    one.renew(ago_s=-100.0, boot="another")
    assert one.end()["kind"] == "fenced"


def test_a_long_grace_does_not_outlast_the_fence(shim: Make) -> None:
    renewed = boottime_s()
    one = shim(
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
        grace_s=3600,
        renewed_boottime_s=renewed,
        fencing_s=1.5,
        margin_s=0.5,
    )
    one.wait_for("ready")
    one.process.terminate()
    assert one.end()["boottime_s"] < renewed + 1.5


def test_sigint_kills_at_once_because_the_node_was_given_up(shim: Make) -> None:
    one = shim("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_s=100)
    one.wait_for("ready")
    one.process.send_signal(signal.SIGINT)
    assert one.end()["kind"] == "fenced"


def test_a_member_past_its_longest_runtime_is_timed_out(shim: Make) -> None:
    assert shim("exec sleep 100", max_runtime_s=0.3).end()["kind"] == "timed_out"


def test_save_now_reaches_programs_that_listen_and_harms_none_that_do_not(shim: Make) -> None:
    one = shim(
        "sleep 100 & "
        + python(
            """
            import os, signal
            signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"saved"))
            print("ready", flush=True)
            while True: signal.pause()
            """
        ).removeprefix("exec ")
    )
    one.wait_for("ready")
    one.process.send_signal(signal.SIGUSR1)
    one.wait_for("saved")
    one.process.terminate()
    assert one.end()["kind"] == "stopped"


def test_a_folder_is_claimed_once(shim: Make) -> None:
    one = shim("exec sleep 0.2")
    one.started()
    second = os.spawnv(os.P_WAIT, one.process.args[0], [*one.process.args[:-1], str(one.folder)])
    assert second == 3
    assert one.end()["kind"] == "done"


def test_a_program_that_cannot_be_executed_never_started(shim: Make) -> None:
    end = shim("true", cwd="/nowhere").end()
    assert end["kind"] == "never_started"
    assert "/nowhere" in end["reason"]


def test_the_program_starts_with_default_signals_and_no_foreign_files(shim: Make) -> None:
    one = shim(
        python(
            """
            import os
            print(sorted(os.listdir("/proc/self/fd")), os.umask(0), os.getsid(0) == os.getppid())
            print([l for l in open("/proc/self/status") if l.startswith("SigIgn")])
            """
        )
    )
    one.end()
    assert "['0', '1', '2', '3'] 63" in one.log()
    ignored = int(re.search(r"SigIgn:\\t(\w+)", one.log())[1], 16)  # type: ignore[index]  # no match fails the test
    assert ignored & ~(1 << (signal.SIGPIPE - 1)) & ~(1 << (signal.SIGXFSZ - 1)) == 0


def test_the_environment_does_not_stay_on_disk(shim: Make) -> None:
    one = shim("exec sleep 0.2")
    one.started()
    assert not (one.folder / "env").exists()
    assert one.end()["kind"] == "done"
