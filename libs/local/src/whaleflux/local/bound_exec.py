"""Replace this process by a command that ends when its parent does.

Run as a plain file (`python -I -S bound_exec.py <signal> <parent's pid> <command> …`), so that it
costs ten milliseconds. The kernel sends the signal when the parent's thread is gone, SIGKILL
of the parent included (PR_SET_PDEATHSIG, Linux); elsewhere the supervisor's sweep has to do.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent, then become the command."""
    number, parent, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before the kernel was told; nobody would ever stop this command.
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
