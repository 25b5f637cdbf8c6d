"""Errors as people need them: what failed, why, what to try next, and the request's id."""

import traceback

import click

from whaleflux.client.cli import exit_codes
from whaleflux.client.cli.terminal import say
from whaleflux.common.errors import Broken, Refused, WhalefluxError


def report(error: BaseException, *, verbose: bool) -> int:
    """Say what went wrong on standard error; return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        say("Interrupted.")
        return exit_codes.INTERRUPTED
    if isinstance(error, click.ClickException):
        _usage(error)
        return error.exit_code
    if isinstance(error, WhalefluxError):
        if verbose:
            say("".join(traceback.format_exception(error)))
        return _known(error)
    if verbose:
        say("".join(traceback.format_exception(error)))
    say(f"Error: something unexpected happened: {type(error).__name__}: {error}")
    if not verbose:
        say("Next: run it again with 'whaleflux -v …' to see where it came from.")
    return exit_codes.GENERAL


def _usage(error: click.ClickException) -> None:
    say(f"Error: {error.format_message()}")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        say(f"Next: {context.command_path} --help")


def _known(error: WhalefluxError) -> int:
    from whaleflux.client.errors import ApiProblem, ServerProblem
    from whaleflux.client.spec_problem import SpecProblem

    if isinstance(error, SpecProblem):
        say(error.message)
        count = len(error.errors)
        say(f"Error: {error.source} has {'an error' if count == 1 else f'{count} errors'}.")
        say("Next: whaleflux explain --field NAME describes a field.")
        return exit_codes.GENERAL
    say(f"Error: {error.message}")
    if isinstance(error, ApiProblem):
        for entry in error.errors:
            named = entry.pointer.strip("/").replace("/", ".")
            say(f"  {named}: {entry.detail}" if named else f"  {entry.detail}")
    code, following = _advice(error)
    if following:
        say(f"Next: {following}")
    if isinstance(error, ApiProblem | ServerProblem) and error.request_id:
        say(f"Request id: {error.request_id}")
    return code


def _advice(error: WhalefluxError) -> tuple[int, str]:
    from whaleflux.client.errors import (
        Conflict,
        NotAllowed,
        NotFound,
        ServerProblem,
        Unreachable,
        WaitTimedOut,
    )

    match error:
        case NotFound():
            return exit_codes.NOT_FOUND, "whaleflux jobs lists the workloads there are."
        case NotAllowed():
            return (
                exit_codes.NOT_ALLOWED,
                "whaleflux config show says which key is used; "
                "whaleflux config set NAME --url URL --api-key-file FILE sets another.",
            )
        case Conflict():
            return exit_codes.CONFLICT, "look at what is there with 'whaleflux get ID'."
        case Unreachable():
            return (
                exit_codes.UNREACHABLE,
                "'whaleflux up' starts one here; 'whaleflux config list' shows the known ones.",
            )
        case WaitTimedOut():
            return exit_codes.TIMED_OUT, "wait again, or ask why with 'whaleflux explain ID'."
        case ServerProblem():
            return exit_codes.GENERAL, "try again in a moment."
        case Refused() if error.code in ("no_gateway", "no_context", "bad_contexts"):
            return exit_codes.GENERAL, "whaleflux config --help"
        case Refused() if error.code == "no_api_key":
            return (
                exit_codes.GENERAL,
                "'whaleflux up' starts the stack of this machine again; "
                "'whaleflux config list' shows the known gateways.",
            )
        case Broken():
            return exit_codes.GENERAL, "please report this; run it with 'whaleflux -v …' first."
        case _:
            return exit_codes.GENERAL, ""
