"""Which build of torch this machine should get, and what that costs to download."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

from .requirements import satisfies

# PyTorch's own indexes. The default index has only CUDA builds for Linux, and only CPU builds for Windows.
# CUDA 13.0 is the line that every release from 2.11 to 2.15 has (pytorch issues 178665 and 190385).
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/gpus")
CPU_SIZE, CUDA_SIZE = "about 0.2 GB", "about 3 GB"


class Choice(NamedTuple):
    """A build of torch: the arguments for `pip install`; the sentence that says what, why, how large."""

    arguments: list
    sentence: str


def choose(specifier, find_links=()):
    """The build for this machine, for a specifier such as '>=2.11,<2.16'.

    COURSE_TORCH (a requirement, or any arguments for `pip install`) overrules everything. `find_links` are
    folders in which wheels may lie already.
    """
    own = os.environ.get("COURSE_TORCH", "").strip()
    plain = [f"torch{specifier}"]
    if own:
        sizes = f"CPU builds are {CPU_SIZE} to download, CUDA builds {CUDA_SIZE}"
        return Choice(shlex.split(own), f"torch: taking `{own}`, as COURSE_TORCH asks ({sizes}).")
    if sys.platform == "darwin":
        return Choice(plain, "torch: the macOS build, about 0.1 GB to download.")
    gpu = nvidia_gpu()
    if sys.platform == "win32":
        if gpu and reachable(CUDA_INDEX + "/torch/"):
            sentence = f"torch: the CUDA build, because there is {gpu}; {CUDA_SIZE} to download."
            return Choice([*plain, "--index-url", CUDA_INDEX], sentence)
        why = f"{gpu} stays idle, for {CUDA_INDEX} does not answer" if gpu else "no NVIDIA GPU was found"
        return Choice(plain, f"torch: the CPU build, because {why}; {CPU_SIZE} to download.")
    if gpu:
        return Choice(plain, f"torch: the CUDA build, because there is {gpu}; {CUDA_SIZE} to download.")
    wheel = wheel_on_disk(specifier, find_links)
    if wheel:
        return Choice(
            [f"torch=={wheel}"],
            f"torch: the CPU build {wheel}, because no NVIDIA GPU was found; it lies on disk.",
        )
    if reachable(CPU_INDEX + "/torch/"):
        return Choice(
            [*plain, "--index-url", CPU_INDEX],
            f"torch: the CPU build, because no NVIDIA GPU was found; {CPU_SIZE} to download.",
        )
    return Choice(
        plain,
        f"torch: the default build, {CUDA_SIZE} to download: no NVIDIA GPU was found, but PyTorch's index of "
        f"the small CPU builds ({CPU_INDEX}) does not answer.",
    )


def nvidia_gpu():
    """A few words for the NVIDIA GPU of this machine, or None."""
    smi = shutil.which("nvidia-smi")
    if smi:
        try:
            listing = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            listing = None
        if listing and listing.returncode == 0 and "GPU" in listing.stdout:
            first = listing.stdout.strip().splitlines()[0]
            return re.sub(r"\s*\(UUID.*", "", first.partition(":")[2]).strip() or "an NVIDIA GPU"
    if NVIDIA_DRIVER.is_dir() and any(NVIDIA_DRIVER.iterdir()):
        return "an NVIDIA GPU"
    if sys.platform == "win32":
        import ctypes.util

        if ctypes.util.find_library("nvcuda"):
            return "an NVIDIA GPU"
    return None


def reachable(url, seconds=5.0):
    """Whether the address answers within that time."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status < 400
    except (OSError, ValueError, urllib.error.URLError):
        return False


def wheel_on_disk(specifier, folders):
    """The version of the newest torch wheel in the folders that fits this machine and specifier, or None.

    A CUDA wheel is of no use on a machine without a GPU, so only builds marked +cpu count.
    """
    tag, machine = f"cp{sys.version_info[0]}{sys.version_info[1]}", platform.machine().lower()
    found = []
    for folder in folders:
        path = Path(unquote(urlparse(folder).path) if folder.startswith("file:") else folder)
        if not path.is_dir():
            continue
        for wheel in path.glob("torch-*.whl"):
            parts = unquote(wheel.name).split("-")
            fits = parts[2] == tag and machine in parts[-1] and satisfies(parts[1], specifier)
            if fits and parts[1].endswith("+cpu"):
                found.append(([int(number) for number in re.findall(r"\d+", parts[1])], parts[1]))
    return max(found)[1] if found else None
