"""Every workload that our documents and examples show is one that the product takes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from whaleflux.common.contracts.workload import WorkloadSpec

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```yaml\n(.*?)```", re.S)


def shown() -> list[tuple[str, str]]:
    found = [
        (f"{path.name}-{number}", block)
        for path in sorted((ROOT / "docs/howto").glob("*.md"))
        for number, block in enumerate(BLOCK.findall(path.read_text()))
    ]
    files = sorted((ROOT / "examples").glob("*/*.yaml"))
    return found + [(f"{path.parent.name}-{path.name}", path.read_text()) for path in files]


@pytest.mark.parametrize(("name", "text"), shown(), ids=[name for name, _ in shown()])
def test_a_workload_that_is_shown_is_taken(name: str, text: str) -> None:
    body: Any = yaml.safe_load(text)
    if "phases" not in body and "run" not in body:
        body = {"name": "piece", "run": "true", **body}
    # The command line names a workload after its file.
    body.setdefault("name", "file")
    # A variable without a value is taken from the caller's environment by the command line.
    body["envs"] = {key: value or "" for key, value in (body.get("envs") or {}).items()}
    assert WorkloadSpec.model_validate(body).phases
