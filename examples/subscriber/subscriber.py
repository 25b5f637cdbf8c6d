"""Read a tenant's events from outside, with nothing but a NATS client.

    python subscriber.py tenant.json [--cursor FILE] [--count N]

`tenant.json` holds `url`, `user` and `password` of a tenant's account, as `up` writes it.
Events are printed as JSON lines. The cursor is kept after each batch, so that a restarted
subscriber goes on where it was: nothing is missed, and nothing is printed twice unless it dies
between printing and keeping the cursor.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import nats

WAIT_S = 20.0
"""How long one question may wait for news; the gateway allows 30."""
RETRY_S = 1.0


async def ask(client: Any, tenant: str, question: dict[str, Any]) -> dict[str, Any]:
    """Ask for events; answers come within the question's own `wait_s`."""
    answer = await client.request(
        f"wf.qry.gateway.events.{tenant}", json.dumps(question).encode(), timeout=WAIT_S + 5
    )
    found: dict[str, Any] = json.loads(answer.data)
    return found


def keep(cursor: int, file: Path) -> None:
    """Write the cursor so that a crash leaves the old one or the new one."""
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(str(cursor))
    beside.replace(file)


async def follow(login: dict[str, str], cursor_file: Path | None, count: int | None) -> None:
    """Print events until *count* have been printed, or for ever."""
    tenant = login["user"].removeprefix("tenant-")
    client = await nats.connect(
        login["url"], user=login["user"], password=login["password"], max_reconnect_attempts=-1
    )
    cursor = int(cursor_file.read_text()) if cursor_file and cursor_file.exists() else 0
    printed = 0
    while count is None or printed < count:
        question = {
            "after": cursor,
            "wait_s": WAIT_S,
            "limit": 100 if count is None else count - printed,
        }
        try:
            answer = await ask(client, tenant, question)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            await asyncio.sleep(RETRY_S)
            continue
        if "first_seq" in answer:
            # The cursor is older than everything that is kept, or was made for another stream.
            resync = {"type": "resync", "why": answer["error"], "first_seq": answer["first_seq"]}
            print(json.dumps(resync), flush=True)
            cursor = answer["first_seq"] - 1
            continue
        if answer.get("error") == "invalid_request":
            raise SystemExit(f"the gateway does not take this question: {answer['detail']}")
        if "error" in answer:
            print(f"not now: {answer['error']}", file=sys.stderr)
            await asyncio.sleep(RETRY_S)
            continue
        for event in answer["events"]:
            print(json.dumps(event), flush=True)
        printed += len(answer["events"])
        cursor = answer["last"]
        if cursor_file:
            keep(cursor, cursor_file)
    await client.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Follow a tenant's WhaleFlux events over NATS.")
    parser.add_argument("login", type=Path, help="JSON file with url, user and password")
    parser.add_argument("--cursor", type=Path, help="file that keeps how far one has read")
    parser.add_argument("--count", type=int, help="stop after so many events")
    options = parser.parse_args()
    login = json.loads(options.login.read_text())
    asyncio.run(follow(login, options.cursor, options.count))


if __name__ == "__main__":
    main()
