"""How fast facts become durable: one at a time, and 100 in one atomic batch."""

import asyncio
import statistics
import time

from whaleflux.common.contracts import subjects
from whaleflux.common.jetstream import JetStream, OutMessage
from whaleflux.common.streams import ensure_streams
from whaleflux.common.testing.servers import NatsServer, nats_server

NAME = "append"
PEERS: dict[str, float] = {}
NOTES = [
    "one nats-server on this machine's disk, sync_interval always; the client shares its cores",
    "atomic_batches_per_s counts batches of 100 facts; multiply by 100 for facts",
    "median of three rounds",
]
ROUNDS = 3
BATCH = 100
BODY = b"x" * 300


def run(quick: bool) -> dict[str, float]:
    """Return appends and batches per second."""
    with nats_server() as server:
        return asyncio.run(_measure(server, 300 if quick else 3_000, 20 if quick else 200))


async def _measure(server: NatsServer, appends: int, batches: int) -> dict[str, float]:
    bus = await server.connect()
    js = JetStream(bus)
    await ensure_streams(js, [subjects.STREAM_FAILOVER])
    singles: list[float] = []
    atomics: list[float] = []
    seq = 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(appends):
            ack = await js.publish("wf.evt.failover.node.lost.n", BODY, expected_last_seq=seq)
            seq = ack.seq
        singles.append(appends / (time.perf_counter() - began))
        messages = [OutMessage("wf.evt.failover.node.lost.n", BODY)] * BATCH
        began = time.perf_counter()
        for _ in range(batches):
            seq = (await js.publish_batch(messages, expected_last_seq=seq)).seq
        atomics.append(batches / (time.perf_counter() - began))
    await bus.close()
    return {
        "appends_per_s": statistics.median(singles),
        "atomic_batches_per_s": statistics.median(atomics),
    }
