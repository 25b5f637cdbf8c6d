"""Wrong bodies are answered with the field, the reason and the nearest right value."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from whaleflux.common.contracts.explain import explain_validation
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.errors import Refused
from whaleflux.gateway.shell.problems import BadRequest
from whaleflux.gateway.shell.spec_body import read_spec

GOOD: dict[str, Any] = {"name": "j", "run": "true"}


def problems(**change: object) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        WorkloadSpec.model_validate({**GOOD, **change})
    return {p.pointer: p.detail for p in explain_validation(caught.value, WorkloadSpec)}


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"resourcs": {}}, "/resourcs", "Did you mean 'resources'?"),
        ({"prority": 1}, "/prority", "Did you mean 'priority'?"),
        ({"fencing": "fats"}, "/fencing", "Did you mean 'fast'?"),
        ({"priority": "high"}, "/priority", "given: 'high'"),
        ({"name": "../etc"}, "/name", "pattern"),
        ({"num_nodes": 0}, "/phases/0/num_nodes", "greater than or equal to 1"),
        ({"resources": {"memory": "lots"}}, "/phases/0/resources/memory", "number"),
        ({"resources": {"gpus": 1}}, "/phases/0/resources/gpus", "There is no 'gpus' here"),
        ({"resources": {"accelerators": "H100:0"}}, "/phases/0/resources/accelerators", "1"),
    ],
)
def test_a_wrong_place_is_named_with_the_way_out(
    change: dict[str, object], pointer: str, words: str
) -> None:
    found = problems(**change)
    (match,) = [detail for at, detail in found.items() if at.startswith(pointer)]
    assert words in match


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["name", "run", "phases", "resources", "kind", "loops", "envs"])
                | st.text(max_size=10),
                inner,
                max_size=5,
            )
        ),
        max_leaves=25,
    )
)
def test_whatever_is_sent_is_taken_or_refused_in_words(body: Any) -> None:
    try:
        raw = json.dumps(body).encode()
        spec = read_spec(raw, "application/json")
    except Refused as refusal:
        assert refusal.message
        return
    assert spec.phases


@given(st.binary(max_size=200))
def test_bytes_that_are_no_document_are_refused(raw: bytes) -> None:
    for kind in ("application/json", "application/yaml"):
        try:
            read_spec(raw, kind)
        except Refused as refusal:
            assert refusal.message


def test_a_deeply_nested_body_is_refused_and_not_a_crash() -> None:
    raw = b'{"a":' * 100_000
    with pytest.raises(BadRequest):
        read_spec(raw, "application/json")
    with pytest.raises(Refused):
        read_spec(b"[" * 20_000, "application/yaml")


def test_a_workdir_that_was_not_uploaded_says_how_to() -> None:
    with pytest.raises(BadRequest, match="PUT /v1/blobs"):
        read_spec(json.dumps({**GOOD, "workdir": "./here"}).encode(), "application/json")


def test_a_body_that_is_too_large_says_how_large_it_may_be() -> None:
    with pytest.raises(Refused, match="512 KiB"):
        read_spec(b" " * (600 * 1024), "application/json")


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"name: x\nrun: y\nenvs:\n  TOKEN: hunter2\n BAD: x\n", "application/yaml"),
        (b'{"name": "x", "envs": {"TOKEN": "hunter2",}}', "application/json"),
        (b'{"name": "x", "run": "y", "envs": {"TOKEN": ["hunter2"]}}', "application/json"),
        (b'{"name": "x", "run": "y", "envs": "TOKEN=hunter2"}', "application/json"),
    ],
)
def test_a_secret_in_a_wrong_body_is_not_repeated(raw: bytes, kind: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_spec(raw, kind)
    assert "hunter2" not in caught.value.message + str(caught.value.problems)


def test_an_unreadable_body_says_where() -> None:
    with pytest.raises(BadRequest, match="line 2, column 6"):
        read_spec(b"name: x\n  run: [", "application/yaml")
    with pytest.raises(BadRequest, match="line 1, column 2"):
        read_spec(b"{name", "application/json")


@pytest.mark.parametrize(
    "raw",
    [
        b"name: x\nrun: y\nresources:\n  accelerators:\n    - &a0 [H100]\n"
        + b"".join(
            b"    - &a%d [%s]\n" % (n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 25)
        ),
        b"name: x\nrun: y\nenvs: &a\n  A: *a\n",
        b"name: x\nrun: y\nneeds: &a [*a, *a]\n",
    ],
    ids=["a tower of aliases", "an endless object", "an endless list"],
)
def test_a_small_text_that_means_something_enormous_is_refused_at_once(raw: bytes) -> None:
    started_s = time.process_time()
    with pytest.raises(Refused):
        read_spec(raw, "application/yaml")
    assert time.process_time() - started_s < 2.0


def test_a_tower_of_lists_is_refused_in_words() -> None:
    body = {**GOOD, "resources": {"accelerators": json.loads("[" * 900 + "]" * 900)}}
    with pytest.raises(BadRequest, match="nests deeper"):
        read_spec(json.dumps(body).encode(), "application/json")


def test_anchors_that_save_writing_are_fine() -> None:
    raw = b"""
name: p
kind: pipeline
phases:
  - &a {name: a, run: x, resources: {accelerators: "H100:1"}}
  - {<<: *a, name: b, needs: [a]}
"""
    assert [p.name for p in read_spec(raw, "application/yaml").phases] == ["a", "b"]
