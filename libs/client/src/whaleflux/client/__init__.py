"""The WhaleFlux SDK: `Client` and `AsyncClient`, typed models, workload files.

Nothing is imported until it is used, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whaleflux.client.async_client import AsyncClient, AsyncWorkload
    from whaleflux.client.errors import (
        ApiProblem,
        Conflict,
        NotAllowed,
        NotFound,
        ServerProblem,
        Unreachable,
        WaitTimedOut,
    )
    from whaleflux.client.models import (
        ExplanationView,
        GpuView,
        LogPiece,
        NodeView,
        PublicEvent,
        RunView,
        WorkloadView,
    )
    from whaleflux.client.sync_client import Client, Workload
    from whaleflux.client.workload_file import from_yaml, to_yaml

_HOMES = {
    "AsyncClient": "async_client",
    "AsyncWorkload": "async_client",
    "ApiProblem": "errors",
    "Conflict": "errors",
    "NotAllowed": "errors",
    "NotFound": "errors",
    "ServerProblem": "errors",
    "Unreachable": "errors",
    "WaitTimedOut": "errors",
    "ExplanationView": "models",
    "GpuView": "models",
    "LogPiece": "models",
    "NodeView": "models",
    "PublicEvent": "models",
    "RunView": "models",
    "WorkloadView": "models",
    "Client": "sync_client",
    "Workload": "sync_client",
    "from_yaml": "workload_file",
    "to_yaml": "workload_file",
}

__all__ = [
    "ApiProblem",
    "AsyncClient",
    "AsyncWorkload",
    "Client",
    "Conflict",
    "ExplanationView",
    "GpuView",
    "LogPiece",
    "NodeView",
    "NotAllowed",
    "NotFound",
    "PublicEvent",
    "RunView",
    "ServerProblem",
    "Unreachable",
    "WaitTimedOut",
    "Workload",
    "WorkloadView",
    "from_yaml",
    "to_yaml",
]


def __getattr__(name: str) -> object:
    """Load *name* from its module at first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
