"""The process that talks to NVIDIA's library, and the only importer of `pynvml`.

A call into a stuck driver never returns, so it must not be made by the agent. This process reads
requests (one JSON object a line) and answers them in order; it ends when its input does.

    {"id": 1, "op": "inventory"}             → {"id": 1, "error": null, "gpus": [...], ...}
    {"id": 2, "op": "sample"}                → {"id": 2, "error": null, "gpus": [...]}
    {"id": 3, "op": "memory", "index": 0}    → {"id": 3, "error": null, "used_mib": 4}
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

UNKNOWN_REPEATS = 3
"""An unexplained error means something only when it comes this often in a row."""

SUPPORTED = "supported"
UNSUPPORTED = "unsupported"
DENIED = "denied"
ERROR = "error"

_MIB = 1024 * 1024
_NOT_SAID = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: UNSUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: DENIED,
}
_FAULTS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "is lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "needs a reset",
}
_NO_SESSION = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no driver",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver and library do not match",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to use the driver",
}


def _utilisation_pct(handle: Any) -> float:  # noqa: ANN401 - the library has no types
    return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)


def _code(error: Any) -> int:  # noqa: ANN401 - the library sets `value` where no type shows it
    return int(error.value)


def _memory(handle: Any) -> Any:  # noqa: ANN401 - the library has no types
    # The newer form leaves out what the driver reserves for itself; an idle card shows about 0.
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if _code(error) not in _NOT_SAID:
            raise
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _memory_used_mib(handle: Any) -> int:  # noqa: ANN401 - the library has no types
    return int(_memory(handle).used) // _MIB


def _memory_total_mib(handle: Any) -> int:  # noqa: ANN401 - the library has no types
    return int(_memory(handle).total) // _MIB


def _temperature_c(handle: Any) -> float:  # noqa: ANN401 - the library has no types
    return float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _power_w(handle: Any) -> float:  # noqa: ANN401 - the library has no types
    return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000


def _power_limit_w(handle: Any) -> float:  # noqa: ANN401 - the library has no types
    return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000


def _sm_clock_mhz(handle: Any) -> int:  # noqa: ANN401 - the library has no types
    return int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))


def _ecc_uncorrected(handle: Any) -> int:  # noqa: ANN401 - the library has no types
    return int(
        pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )


SIGNALS: Mapping[str, Callable[[Any], float]] = {
    "utilisation_pct": _utilisation_pct,
    "memory_used_mib": _memory_used_mib,
    "memory_total_mib": _memory_total_mib,
    "temperature_c": _temperature_c,
    "power_w": _power_w,
    "power_limit_w": _power_limit_w,
    "sm_clock_mhz": _sm_clock_mhz,
    "ecc_uncorrected": _ecc_uncorrected,
}
"""What is measured, by its name in `GpuSample`."""


class Card:
    """One GPU: which signals it gives, and what is wrong with it."""

    def __init__(self, index: int) -> None:
        """Look at GPU *index* of an open session."""
        self.index = index
        self.capabilities: dict[str, str] = {}
        self.uuid: str | None = None
        self.name: str | None = None
        self.fault: str | None = None
        self._handle: Any = None
        self._unexplained = False
        self._unknown_rounds = 0
        self._open()

    def measure(self) -> dict[str, float | None]:
        """Return every signal; None for what the card does not say."""
        self.fault = None
        if self._handle is None:
            self._open()
        if self._handle is None:
            return dict.fromkeys(SIGNALS)
        self._unexplained = False
        values = {name: self._read(name) for name in SIGNALS}
        self._unknown_rounds = self._unknown_rounds + 1 if self._unexplained else 0
        if self._unknown_rounds >= UNKNOWN_REPEATS and self.fault is None:
            self.fault = "gives unknown errors"
        return values

    def memory_used_mib(self) -> float | None:
        """Return the memory in use, or None."""
        return None if self._handle is None else self._read("memory_used_mib")

    def _open(self) -> None:
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
            self.uuid = _text(pynvml.nvmlDeviceGetUUID(self._handle))
            self.name = _text(pynvml.nvmlDeviceGetName(self._handle))
        except pynvml.NVMLError as error:
            self._handle = None
            self.fault = _FAULTS.get(_code(error), f"cannot be opened: {error}")

    def _read(self, name: str) -> float | None:
        if self.capabilities.get(name) in (UNSUPPORTED, DENIED):
            return None
        try:
            value = SIGNALS[name](self._handle)
        except pynvml.NVMLError as error:
            self.capabilities[name] = _NOT_SAID.get(_code(error), ERROR)
            self.fault = _FAULTS.get(_code(error), self.fault)
            self._unexplained |= _code(error) == pynvml.NVML_ERROR_UNKNOWN
            return None
        self.capabilities[name] = SUPPORTED
        return value


class Session:
    """The library, opened when first needed."""

    def __init__(self) -> None:
        self._cards: list[Card] | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to *request*."""
        try:
            cards = self._open()
        except pynvml.NVMLError as error:
            return {"error": _NO_SESSION.get(_code(error), "nvml failed"), "detail": str(error)}
        match request["op"]:
            case "inventory":
                return {"error": None, "gpus": [_describe(card) for card in cards]}
            case "sample":
                return {"error": None, "gpus": [_sample(card) for card in cards]}
            case _:
                card = next((c for c in cards if c.index == request["index"]), None)
                return {"error": None, "used_mib": card.memory_used_mib() if card else None}

    def _open(self) -> list[Card]:
        if self._cards is None:
            pynvml.nvmlInit()
            self._cards = [Card(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return self._cards


def _describe(card: Card) -> dict[str, Any]:
    values = card.measure()
    return {
        "index": card.index,
        "uuid": card.uuid,
        "name": card.name,
        "memory_mib": values["memory_total_mib"],
        "fault": card.fault,
        "capabilities": card.capabilities,
    }


def _sample(card: Card) -> dict[str, Any]:
    return {"index": card.index, "values": card.measure(), "fault": card.fault}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    """Answer requests until the input ends."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    session = Session()
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps({"id": request["id"], **session.answer(request)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
