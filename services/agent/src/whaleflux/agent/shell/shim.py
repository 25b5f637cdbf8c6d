"""whaleflux-shim: the parent of one member, which outlives the agent and fences by itself.

Started as `python -I -S shim.py <member folder>`; its only input is that folder (`spec` and `env`,
NUL-separated `KEY=value`). It is a session leader and subreaper, so no descendant escapes it. It
writes, each atomically:

* `shim.json` before anything else, by a link that only one process can make: the claim that this
  member is started at most once;
* `started.json` once the program has been executed (also told in one line on its own stdout);
* `exit.json` once the *last* descendant is gone.

Signals: SIGTERM stops the member within its grace, SIGINT kills it at once (the node was given
up), SIGUSR1 goes on to those of the member's processes that catch it (save now).

The fence deadline is the last renewal that the agent wrote into the node's `fence.json`, plus
`fencing_s`, on CLOCK_BOOTTIME. The file is read again only when the known deadline passes.

This file is short because Python compiles the script it is given anew at each start; the parts it
imports are compiled once.
"""

import os
import sys


def main() -> None:
    """Run the member whose folder is the only argument, and leave without ceremony."""
    from whaleflux.agent.shell.shim_parts.watch import Shim

    os.closerange(3, 65_536)
    if os.getsid(0) != os.getpid():
        os.setsid()
    shim = Shim(os.path.abspath(sys.argv[1]))
    if not shim.claim():
        os._exit(3)
    shim.run()
    os._exit(0)


if __name__ == "__main__":
    folder = os.path.abspath(__file__)
    for _ in range(4):
        folder = os.path.dirname(folder)
    sys.path.append(folder)
    main()
