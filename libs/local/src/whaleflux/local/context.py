"""The command line's context `local`: where the embedded stack listens and which key opens it."""

from pathlib import Path

from whaleflux.client.contexts import Context, contexts_file, read_contexts, write_contexts

CONTEXT = "local"


def write_context(url: str, api_key_file: Path) -> None:
    """Point the context `local` at a stack; it becomes current unless another one already is.

    Raises:
        Refused: There is a contexts file that cannot be read.

    """
    path = contexts_file()
    context = Context(url=url, api_key_file=str(api_key_file))
    write_contexts(path, read_contexts(path).with_context(CONTEXT, context))
