"""Facts of the machine: GPU, driver and package versions; clock and power during a run."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from collections.abc import Callable

Sampler = Callable[[], tuple[float, float]]


def version(distribution: str) -> str | None:
    """Installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> dict[str, object]:
    """The facts of torch's current GPU and of the installed packages."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    driver, limit = ask_smi("driver_version,power.limit", gpu_uuid())
    return {
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        "driver": driver,
        "power_limit_w": limit,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "nvidia-cutlass-dsl": version("nvidia-cutlass-dsl"),
        "quack-kernels": version("quack-kernels"),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def gpu_uuid() -> str:
    """The UUID of torch's current GPU, as NVML and nvidia-smi take it."""
    import torch

    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return f"GPU-{str(uuid).removeprefix('GPU-')}"


def ask_smi(fields: str, gpu: str) -> list[str]:
    """nvidia-smi's answer, or a reason for each field."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", gpu]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return [f"unknown ({type(error).__name__})"] * len(fields.split(","))
    return [field.strip() for field in out.strip().split(",")]


def sampler() -> tuple[str, Sampler | None]:
    """The reader of clock (MHz) and power (W). NVML through pynvml if it works, else nvidia-smi."""
    readers: tuple[tuple[str, Callable[[str], Sampler]], ...] = (("NVML", _nvml), ("nvidia-smi", _smi))
    for name, make in readers:
        try:
            read = make(gpu_uuid())
            read()
        except Exception:  # not installed, refused, or unknown to this driver: try the next one
            continue
        return name, read
    return "not read", None


def _nvml(uuid: str) -> Sampler:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    instant = getattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", 186)  # nvmlDeviceGetPowerUsage averages over a second

    def read() -> tuple[float, float]:
        field = pynvml.nvmlDeviceGetFieldValues(handle, [instant])[0]
        milliwatts = field.value.uiVal if field.nvmlReturn == 0 else pynvml.nvmlDeviceGetPowerUsage(handle)
        return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)), milliwatts / 1e3

    return read


def _smi(uuid: str) -> Sampler:
    def read() -> tuple[float, float]:
        clock, power = ask_smi("clocks.sm,power.draw.instant", uuid)
        return float(clock), float(power)

    return read
