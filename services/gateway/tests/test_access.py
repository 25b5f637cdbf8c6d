"""Whose key it is and what it may do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from whaleflux.common.contracts.gateway import GatewayEvent, KeyCreated, TenantCreated
from whaleflux.common.errors import Refused
from whaleflux.common.testing.memory import MemoryLog
from whaleflux.gateway.core.access import ROLES, Permission, identify, require
from whaleflux.gateway.core.decide import AdmitFirstKey, CreateKey, RevokeKey, Thought, decide
from whaleflux.gateway.core.evolve import evolve
from whaleflux.gateway.core.state import Key, State
from whaleflux.gateway.shell.keys import Keys, secret_hash

NOW = datetime(2031, 1, 1, tzinfo=UTC)


def told(*thoughts: Thought) -> State:
    state = State()
    for thought in thoughts:
        for event in decide(state, thought, NOW):
            evolve(state, event, 1)
    return state


def test_the_first_key_is_an_administrators_and_comes_with_its_tenant() -> None:
    state = told(AdmitFirstKey("default", "key_1", "h"))
    assert state.tenants == {"default"}
    assert state.keys["h"].role == "admin"


def test_a_second_first_key_is_not_made() -> None:
    state = told(AdmitFirstKey("default", "key_1", "h"), AdmitFirstKey("evil", "key_2", "x"))
    assert list(state.keys) == ["h"]


def test_a_revoked_key_is_not_known_any_more() -> None:
    state = told(CreateKey("t", "key_1", "u", "viewer", "h"), RevokeKey("key_1"))
    with pytest.raises(Refused, match="not known"):
        identify(state, "h", NOW)
    assert decide(state, RevokeKey("key_1"), NOW) == ()


def test_an_expired_key_says_when_it_expired() -> None:
    state = State()
    evolve(state, TenantCreated(at=NOW, tenant="t"), 1)
    expired = KeyCreated(
        at=NOW,
        key_id="key_1",
        tenant="t",
        user="u",
        role="viewer",
        secret_sha256="h",
        expires_at=NOW,
    )
    evolve(state, expired, 2)
    with pytest.raises(Refused, match="expired at 2031-01-01"):
        identify(state, "h", NOW + timedelta(seconds=1))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("permission", Permission)
def test_a_role_may_do_what_it_says_and_a_refusal_names_the_permission(
    role: str, permission: Permission
) -> None:
    key = Key("key_1", "t", "u", role, None)  # type: ignore[arg-type]  # a role by parameter
    granted = permission in ROLES[key.role]
    if granted:
        require(key, permission)
        return
    with pytest.raises(Refused, match=permission.value) as caught:
        require(key, permission)
    assert caught.value.code == "forbidden"


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def now(self) -> datetime:
        return NOW

    def boottime_s(self) -> float:
        return self.s


class Ids:
    def new(self, prefix: str) -> str:
        return f"{prefix}_1"


async def test_the_first_keys_secret_is_read_from_its_file_and_only_its_hash_is_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / "key"
    file.write_text("wf_live_secret\n")
    log: MemoryLog[GatewayEvent] = MemoryLog()
    keys = Keys(log, Clock(), Ids())
    await keys.open(bootstrap_file=str(file), tenant="default")
    assert (await keys.identify("wf_live_secret")).user == "admin"
    assert "wf_live_secret" not in str(log.events)


async def test_a_key_that_another_gateway_made_is_found_in_the_log() -> None:
    log: MemoryLog[GatewayEvent] = MemoryLog()
    clock = Clock()
    keys = Keys(log, clock, Ids())
    await keys.open(bootstrap_file="", tenant="default")
    log.events += list(decide(State(), CreateKey("t", "k", "u", "viewer", secret_hash("new")), NOW))
    assert (await keys.identify("new")).tenant == "t"
    with pytest.raises(Refused):
        await keys.identify("wrong")


async def test_guesses_do_not_make_the_log_be_read_for_each() -> None:
    reads = 0

    class Counting(MemoryLog[GatewayEvent]):
        async def last_seq(self) -> int:
            nonlocal reads
            reads += 1
            return await super().last_seq()

    clock = Clock()
    keys = Keys(Counting(), clock, Ids())
    await keys.open(bootstrap_file="", tenant="default")
    before = reads
    for guess in range(50):
        with pytest.raises(Refused):
            await keys.identify(f"guess {guess}")
    assert reads == before + 1


async def test_a_missing_key_file_is_said_so(tmp_path: Path) -> None:
    keys = Keys(MemoryLog(), Clock(), Ids())
    with pytest.raises(Refused, match="cannot be read"):
        await keys.open(bootstrap_file=str(tmp_path / "none"), tenant="default")
