"""What Prometheus reads: the cards, under the names that existing dashboards use, and ourselves.

The names and labels are those of NVIDIA's exporter, with `simulated` added. A GPU that is stale
and a figure that is unknown are absent, never zero.
"""

from collections.abc import Callable, Iterator

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from whaleflux.common.contracts.telemetry import GpuSample
from whaleflux.telemetry.shell.live import Live

MESSAGES = Counter(
    "whaleflux_telemetry_messages", "Samples heard, by what became of them", ["fate"]
)
WRITTEN = Counter("whaleflux_telemetry_readings_written", "Figures of one GPU written to the cache")
DROPPED = Counter("whaleflux_telemetry_readings_dropped", "Figures that were not written")

LABELS = ("gpu", "UUID", "device", "modelName", "Hostname", "simulated")

Take = Callable[[GpuSample], float | int | None]

GAUGES: tuple[tuple[str, str, Take], ...] = (
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda s: s.utilisation_pct),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda s: s.memory_used_mib),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", lambda s: _free_mib(s)),
    ("DCGM_FI_DEV_FB_TOTAL", "Framebuffer memory (in MiB).", lambda s: s.memory_total_mib),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda s: s.temperature_c),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda s: s.power_w),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit (in W).", lambda s: s.power_limit_w),
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda s: s.sm_clock_mhz),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrectable ECC errors since the driver was loaded.",
        lambda s: s.ecc_uncorrected,
    ),
)


class GpuCollector(Collector):
    """Shows the live picture at each scrape."""

    def __init__(self, live: Live, now_s: Callable[[], float]) -> None:
        """Show *live* as of *now_s()*, a boottime in seconds."""
        self._live = live
        self._now_s = now_s

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each signal, and how many GPUs and nodes are heard."""
        now_s = self._now_s()
        readings = list(self._live.readings(now_s))
        labels = [
            (
                str(r.sample.index),
                r.sample.uuid,
                f"nvidia{r.sample.index}",
                r.sample.type,
                r.node_id,
                _flag(r.simulated),
            )
            for r in readings
        ]
        for name, text, take in GAUGES:
            family = GaugeMetricFamily(name, text, labels=LABELS)
            for label, reading in zip(labels, readings, strict=True):
                value = take(reading.sample)
                if value is not None:
                    family.add_metric(label, value)
            yield family
        heard = GaugeMetricFamily(
            "whaleflux_telemetry_gpus",
            "GPUs with figures that are not stale",
            labels=("simulated",),
        )
        for simulated in (False, True):
            count = sum(reading.simulated is simulated for reading in readings)
            heard.add_metric((_flag(simulated),), count)
        yield heard
        yield self._probes(now_s)

    def _probes(self, now_s: float) -> Metric:
        probes = GaugeMetricFamily(
            "whaleflux_telemetry_probe_ok",
            "1 while a node can measure its GPUs, 0 while it says why it cannot",
            labels=("Hostname",),
        )
        for node_id, error in self._live.nodes(now_s):
            probes.add_metric((node_id,), 0 if error else 1)
        return probes


def _free_mib(sample: GpuSample) -> int | None:
    if sample.memory_total_mib is None or sample.memory_used_mib is None:
        return None
    return sample.memory_total_mib - sample.memory_used_mib


def _flag(value: bool) -> str:
    return "true" if value else "false"
