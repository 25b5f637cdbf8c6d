"""`submit` and `validate`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whaleflux.client.cli import exit_codes
from whaleflux.client.cli.output import show_one
from whaleflux.client.cli.session import Session, pass_session
from whaleflux.client.cli.terminal import bold, size
from whaleflux.common.errors import Refused

if TYPE_CHECKING:
    from whaleflux.client.packing import Archive
    from whaleflux.common.contracts.workload import WorkloadSpec

FORMATS = ("table", "json", "jsonl", "yaml", "name")
STDIN = "-"


def _edits(function: Any) -> Any:  # noqa: ANN401 - a click decorator
    for option in (
        click.option(
            "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change a field of the file."
        ),
        click.option(
            "-e", "--env", "envs", multiple=True, metavar="NAME[=VALUE]", help="Add to 'envs'."
        ),
        click.option("-n", "--name", help="Another name than the file says."),
        click.argument("file", metavar="FILE|-"),
    ):
        function = option(function)
    return function


@click.command()
@_edits
@click.option("--workdir", type=click.Path(path_type=Path), help="Another folder to take along.")
@click.option("--idempotency-key", help="The same key never submits twice.")
@click.option("--wait", "waits", is_flag=True, help="Return when it has ended, with its exit code.")
@click.option("--timeout", type=float, help="With --wait: at most so many seconds.")
@click.option("--dry-run", is_flag=True, help="Only say what would be submitted.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table")
@click.option("--json", "as_json", is_flag=True, help="Short for -o json.")
@pass_session
def submit(session: Session, /, file: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Hand in the workload that FILE describes; '-' reads standard input.

    The workload's id goes to standard output.
    """
    output = "json" if given["as_json"] else given["output"]
    spec, base = _read(file, given)
    if given["dry_run"]:
        return _dry_run(session, spec, base, given["workdir"], output)
    spec = _with_workdir(session, spec, base, given["workdir"])
    found = session.client.submit(spec, idempotency_key=given["idempotency_key"])
    session.note(f"Submitted {found.name} ({found.id}): {found.state}.")
    code = exit_codes.OK
    if given["waits"]:
        session.farewell = _farewell(found.id, found.name)
        found = session.client.wait(found.id, timeout_s=given["timeout"])
        session.note(_result(found.name, found.state, found.reason))
        code = exit_codes.of_state(found.state)
    elif found.ended:
        session.note(_result(found.name, found.state, found.reason))
        code = exit_codes.of_state(found.state)
    else:
        session.note(f"  whaleflux logs -f {found.id}\n  whaleflux explain {found.id}")
    show_one(found.to_dict(), output, name=found.id, text_lines=lambda: [found.id])
    return code


@click.command()
@_edits
@click.option("--offline", is_flag=True, help="Do not ask the gateway.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table")
@pass_session
def validate(session: Session, /, file: str, offline: bool, output: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Check FILE without running it: here first, then by the gateway's own rules."""
    spec, base = _read(file, given)
    checked = _with_packed_workdir(session, spec, base, None, verb="Packs")
    verdict = "checked here only" if offline else _gateway_verdict(session, checked)
    session.note(f"{spec.name} is a valid {spec.kind.value} ({verdict}).")
    if output != "table":
        _show_spec(spec, output)
    return exit_codes.OK


def _read(file: str, given: dict[str, Any]) -> tuple["WorkloadSpec", Path]:
    """Return the workload of *file* with the changes of the command line, and its folder."""
    from whaleflux.client.spec_edit import set_envs, set_paths
    from whaleflux.client.spec_problem import SpecProblem
    from whaleflux.client.workload_file import spec_of
    from whaleflux.client.yaml_document import read_document

    source = "standard input" if file == STDIN else file
    try:
        document = read_document(_text(file))
        set_paths(document, given["sets"])
        set_envs(document, given["envs"])
        name = given["name"]
        if name is None and "name" not in document.value and file != STDIN:
            name = Path(file).stem
        return spec_of(document, name=name), Path() if file == STDIN else Path(file).parent
    except SpecProblem as problem:
        raise problem.of(source) from problem


def _text(file: str) -> str:
    try:
        if file == STDIN:
            return sys.stdin.buffer.read().decode()
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}.", code="no_file") from error
    except UnicodeDecodeError as error:
        raise Refused(
            f"{file}: this is not UTF-8 text ({error.reason}).", code="no_text"
        ) from error


def _with_workdir(
    session: Session, spec: "WorkloadSpec", base: Path, workdir: Path | None
) -> "WorkloadSpec":
    from whaleflux.client.flows import workdir_folder
    from whaleflux.client.packing import packed

    folder = workdir or workdir_folder(spec, base)
    if folder is None:
        return spec
    with packed(folder) as archive:
        sent = session.client.upload(archive.path, archive.sha256)
        what = _amount(archive)
        session.note(f"Uploaded {folder} ({what})." if sent else f"{folder} is unchanged ({what}).")
        return spec.model_copy(update={"workdir": archive.reference})


def _with_packed_workdir(
    session: Session,
    spec: "WorkloadSpec",
    base: Path,
    workdir: Path | None,
    *,
    verb: str = "Would upload",
) -> "WorkloadSpec":
    """Return *spec* as it would be submitted, without sending its folder."""
    from whaleflux.client.flows import workdir_folder
    from whaleflux.client.packing import packed

    folder = workdir or workdir_folder(spec, base)
    if folder is None:
        return spec
    with packed(folder) as archive:
        session.note(f"{verb} {folder} ({_amount(archive)}).")
        return spec.model_copy(update={"workdir": archive.reference})


def _amount(archive: "Archive") -> str:
    entries = "1 entry" if archive.entries == 1 else f"{archive.entries} entries"
    return f"{entries}, {size(archive.bytes)} packed"


def _dry_run(
    session: Session, spec: "WorkloadSpec", base: Path, workdir: Path | None, output: str
) -> int:
    spec = _with_packed_workdir(session, spec, base, workdir)
    session.note(f"Would submit {bold(spec.name)} ({_gateway_verdict(session, spec)}):")
    _show_spec(spec, "yaml" if output == "table" else output)
    return exit_codes.OK


def _gateway_verdict(session: Session, spec: "WorkloadSpec") -> str:
    """Ask the gateway too where there is one; without one the check here has to do."""
    from whaleflux.client.errors import Unreachable

    try:
        session.client.validate(spec)
    except Unreachable:
        return "checked here only: the gateway cannot be reached"
    except Refused as error:
        if error.code != "no_gateway":
            raise
        return "checked here only: no gateway is known"
    return "checked here and by the gateway"


def _show_spec(spec: "WorkloadSpec", output: str) -> None:
    from whaleflux.client.workload_file import to_file_form

    form = to_file_form(spec) if output == "yaml" else spec.model_dump(mode="json", by_alias=True)
    show_one(form, output, name=spec.name, text_lines=list)


def _farewell(id_: str, name: str) -> str:
    return (
        f"Detached; {name} goes on.\n  whaleflux logs -f {id_}\n  whaleflux cancel {id_}   ends it"
    )


def _result(name: str, state: str, reason: str | None) -> str:
    return f"{name} {state}{f': {reason}' if reason else ''}."
