"""Documents lead somewhere, decisions are listed, and the changelog keeps its form."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    if (ROOT / line).is_file()
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
KINDS = ("Added", "Changed", "Fixed", "Removed")
ADRS = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """Return what a heading is called in a link: lower case, hyphens, no punctuation."""
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", outside, re.M)
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        where = path.parent / target if target else path
        assert where.exists(), target
        if anchor and where.suffix == ".md":
            assert anchor in anchors(where.read_text()), f"{target}#{anchor}"


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))
    listed = re.findall(
        r"^- \[(\d+)\. (.+)\]\((.+)\)$", (ROOT / "docs/adr/README.md").read_text(), re.M
    )
    assert [
        (int(path.name[:4]), path.read_text().splitlines()[0].partition(". ")[2], path.name)
        for path in ADRS
    ] == [(int(number), title, file) for number, title, file in listed]


@pytest.mark.parametrize("path", ADRS, ids=name)
def test_a_decision_says_why_what_and_what_follows(path: Path) -> None:
    text = path.read_text()
    assert re.match(r"# \d+\. \S", text)
    assert re.search(
        r"^Status: (accepted|superseded by \[\d+\]\(.+\)), \d{4}-\d\d-\d\d\.$", text, re.M
    )
    assert re.findall(r"^## (.+)$", text, re.M) == ["Context", "Decision", "Consequences"]


def test_the_changelog_has_releases_and_kinds_in_order() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.+)$", text, re.M)
    assert releases[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", title) for title in releases[1:])
    for release in re.split(r"^## .+$", text, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.+)$", release, re.M)
        assert kinds == [kind for kind in KINDS if kind in kinds]
        for line in re.sub(r"^### .+$", "", release, flags=re.M).splitlines():
            assert line == "" or line.startswith(("- ", "  ")), line


def test_fragments_of_the_changelog_say_which_kind_they_are() -> None:
    for path in (ROOT / "changes").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md", path.name)
            assert path.read_text().strip(), path.name
