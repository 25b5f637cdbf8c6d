"""Workload files: what people write, what goes wrong and where, and the way back to YAML."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whaleflux.client.spec_edit import set_envs, set_paths
from whaleflux.client.spec_help import FIELDS, find
from whaleflux.client.spec_problem import SpecProblem
from whaleflux.client.workload_file import from_yaml, spec_of, to_yaml
from whaleflux.client.yaml_document import read_document
from whaleflux.common.contracts.workload import WorkloadSpec
from whaleflux.common.errors import Refused


def _problem(text: str) -> str:
    with pytest.raises(SpecProblem) as wrong:
        from_yaml(text, environ={})
    return str(wrong.value)


def test_a_key_that_stands_twice_is_an_error_with_both_lines() -> None:
    assert _problem("name: x\nrun: a\nname: y\n") == (
        "workload:3:1: name: 'name' stands here twice; first in line 1."
    )


def test_an_unknown_key_names_its_place_and_the_nearest_right_one() -> None:
    said = _problem("name: x\nrun: a\nresources:\n  acelerators: H100:8\n")
    assert said.startswith("workload:4:3: resources.acelerators:")
    assert "'accelerators'" in said


def test_a_wrong_value_names_the_line_of_the_value() -> None:
    said = _problem("name: x\nrun: a\nresources: {accelerators: H100:0}\n")
    assert said.startswith("workload:3:27: resources.accelerators:")


def test_text_that_is_no_yaml_names_line_and_column() -> None:
    assert _problem("name: x\nresources: {a: [1\n").startswith("workload:3:1: This is not YAML")
    assert "tab" in _problem("name: x\n\trun: a\n")


def test_all_errors_are_said_at_once_and_no_echo_of_them() -> None:
    said = _problem("name: x\nkind: pipeline\nphases: [{name: A, run: 1, neds: []}]\n")
    assert [line.split(": ")[1] for line in said.splitlines()] == [
        "phases.0.name",
        "phases.0.run",
        "phases.0.neds",
    ]


def test_a_jobs_key_beside_phases_is_explained() -> None:
    said = _problem("name: x\nkind: pipeline\nrun: a\nphases: [{name: a, run: b}]\n")
    assert "in each of its phases" in said


def test_a_file_that_explodes_by_its_aliases_is_refused() -> None:
    layers = ["a: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    layers += [f"k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "too much" in _problem("\n".join(layers))


def test_environment_values_stay_as_they_are_written() -> None:
    spec = from_yaml(
        "name: x\nrun: a\nenvs: {VERSION: 1.10, ON: yes, FLAG: true, N: 010, T: 12:30, KEY: }\n",
        environ={"KEY": "mine"},
    )
    assert spec.envs == {
        "VERSION": "1.10",
        "ON": "yes",
        "FLAG": "true",
        "N": "010",
        "T": "12:30",
        "KEY": "mine",
    }


def test_a_variable_that_is_nowhere_set_is_an_error() -> None:
    assert _problem("name: x\nrun: a\nenvs:\n  KEY:\n").startswith("workload:4:")


def test_merged_mappings_are_understood_and_say_less_than_what_stands_there() -> None:
    spec = from_yaml(
        "name: x\nkind: pipeline\n"
        "phases:\n"
        "  - &base {name: a, run: go, num_nodes: 2}\n"
        "  - {<<: *base, name: b}\n"
    )
    assert [(p.name, p.run, p.num_nodes) for p in spec.phases] == [("a", "go", 2), ("b", "go", 2)]


def test_a_file_without_a_name_is_called_after_itself(tmp_path: Path) -> None:
    file = tmp_path / "nightly-eval.yaml"
    file.write_text("run: a\n")
    assert from_yaml(file).name == "nightly-eval"
    assert from_yaml(file, name="other").name == "other"


def test_set_and_env_change_the_file_before_it_is_checked() -> None:
    document = read_document(
        "name: x\nkind: pipeline\nphases: [{name: a, run: go}, {name: b, run: go}]\n"
    )
    set_paths(
        document,
        ["phases.b.resources.accelerators=H100:4", "phases.0.num_nodes=3", "envs.V=1.5"],
    )
    set_envs(document, ["A=b=c", "OWN"], environ={"OWN": "mine"})
    spec = spec_of(document)
    assert spec.phases[0].num_nodes == 3
    assert spec.phases[1].resources.accelerators[0].count == 4
    assert spec.envs == {"V": "1.5", "A": "b=c", "OWN": "mine"}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [("name", "path=value"), ("phases.rolout.run=x", "'rollout'"), ("name.x=1", "no place")],
)
def test_a_set_that_leads_nowhere_says_so(assignment: str, said: str) -> None:
    document = read_document("name: x\nkind: pipeline\nphases: [{name: rollout, run: go}]\n")
    with pytest.raises(Refused, match=said):
        set_paths(document, [assignment])


def test_every_field_of_the_contract_is_described_and_no_other() -> None:
    named = set(WorkloadSpec.model_fields) | {"run", "setup", "role", "max_runtime_s"}
    described = {f.split(".")[0] for f in FIELDS}
    assert described == named | {"resources", "num_nodes"}
    for path in ("phases.0.resources.accelerators", "phases.run", "loops.until"):
        assert find(path) is not None, path


word = st.from_regex(r"[a-z][a-z0-9_]{0,11}", fullmatch=True)
text = st.text(max_size=60)
command = st.text(min_size=1, max_size=200)
accelerators = st.lists(
    st.tuples(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True), st.integers(1, 1024)
    ).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    max_size=3,
)
resources = st.fixed_dictionaries(
    {"accelerators": accelerators},
    optional={"cpus": st.floats(0.5, 4096), "memory": st.integers(1, 65536)},
)
envs = st.dictionaries(st.text(min_size=1, max_size=12), text, max_size=4)
common = {
    "resources": resources,
    "num_nodes": st.integers(1, 512),
    "setup": text,
    "role": st.sampled_from(["rollout", "training", None]),
    "max_runtime_s": st.floats(0.1, 1e9),
}
phase_extra = {
    "envs": envs,
    "fencing": st.sampled_from(["fast", "patient"]),
    "retry": st.fixed_dictionaries({"max_attempts": st.integers(1, 100)}),
    "checkpoint": st.fixed_dictionaries({"grace_s": st.floats(0, 3600)}),
}
top = {
    "project": st.from_regex(r"[a-z0-9][a-z0-9_-]{0,10}", fullmatch=True),
    "priority": st.integers(-1000, 1000),
    "store": st.sampled_from(["local", "default"]),
    "workdir": text,
    **phase_extra,
}
name = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,40}", fullmatch=True)


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    head = draw(st.fixed_dictionaries({"name": name}, optional=top))
    if draw(st.booleans()):
        job = draw(st.fixed_dictionaries({"run": command}, optional=common))
        return {"kind": "job", **head, **job}
    names = draw(st.lists(word, min_size=1, max_size=4, unique=True))
    phases = []
    for index, own in enumerate(names):
        phase = draw(st.fixed_dictionaries({"run": command}, optional={**common, **phase_extra}))
        needs = names[:index] if draw(st.booleans()) else []
        phases.append({"name": own, "needs": needs, **phase})
    loops = []
    if draw(st.booleans()):
        loops = [{"phases": names, "max": draw(st.integers(1, 50)), "until": f"{names[0]}.x >= 1"}]
    return {"kind": "pipeline", **head, "phases": phases, "loops": loops}


@settings(max_examples=150, deadline=None)
@given(body=workloads())
def test_what_is_written_reads_back_as_the_same_workload(body: dict[str, Any]) -> None:
    spec = WorkloadSpec.model_validate(body)
    written = to_yaml(spec)
    assert from_yaml(written, environ={}) == spec
    assert to_yaml(from_yaml(written, environ={})) == written
