"""Which build of torch the set-up takes on which machine, and what it says about it."""

import os
import sys
import time

import pytest

from course_lib.bootstrap import wheels

posix = pytest.mark.skipif(os.name != "posix", reason="a script stands in for nvidia-smi")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A Linux machine without a GPU, without wheels on disk, that reaches PyTorch's CPU index."""
    monkeypatch.delenv("COURSE_TORCH", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(wheels, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr(wheels, "reachable", lambda url: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def smi(folder, script):
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def test_without_a_gpu_the_cpu_build_is_chosen(machine):
    choice = wheels.choose(">=2.11,<2.16")
    assert choice.arguments == ["torch>=2.11,<2.16", "--index-url", wheels.CPU_INDEX]
    assert "no NVIDIA GPU" in choice.sentence and "0.2 GB" in choice.sentence


def test_where_the_cpu_index_does_not_answer_the_default_build_is_taken_and_its_size_said(
    machine, monkeypatch
):
    monkeypatch.setattr(wheels, "reachable", lambda url: False)
    choice = wheels.choose(">=2.11,<2.16")
    assert choice.arguments == ["torch>=2.11,<2.16"] and "3 GB" in choice.sentence


@posix
def test_with_a_gpu_the_cuda_build_is_chosen(machine):
    smi(machine, "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    choice = wheels.choose(">=2.11,<2.16")
    assert choice.arguments == ["torch>=2.11,<2.16"]
    assert "NVIDIA H200;" in choice.sentence and "3 GB" in choice.sentence


@posix
@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'"])
def test_a_driver_without_a_gpu_is_not_a_gpu(machine, script):
    smi(machine, script)
    assert "CPU build" in wheels.choose("").sentence


def test_a_loaded_driver_counts_without_nvidia_smi(machine):
    (machine / "none" / "0000:01").mkdir(parents=True)
    assert "CUDA build" in wheels.choose("").sentence


def test_a_cpu_wheel_on_disk_needs_no_download(machine):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    here = wheels.platform.machine().lower()
    for version in ("2.10.0+cpu", "2.12.0+cpu", "2.13.0+cpu", "2.14.0"):
        (machine / f"torch-{version}-{tag}-{tag}-linux_{here}.whl").touch()
    (machine / f"torch-2.15.0+cpu-{tag}-{tag}-linux_other.whl").touch()
    (machine / f"torch-2.15.0+cpu-cp39-cp39-linux_{here}.whl").touch()
    assert wheels.choose(">=2.11,<2.16", ["/nowhere", machine.as_uri()]).arguments == ["torch==2.13.0+cpu"]


def test_course_torch_overrules(machine, monkeypatch):
    monkeypatch.setenv("COURSE_TORCH", "torch==2.13.0 --index-url https://example.org/simple")
    choice = wheels.choose(">=2.11")
    assert choice.arguments == ["torch==2.13.0", "--index-url", "https://example.org/simple"]


def test_a_mac_takes_the_default_build(machine, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    choice = wheels.choose(">=2.11")
    assert choice.arguments == ["torch>=2.11"] and "macOS" in choice.sentence


@pytest.mark.parametrize(
    "gpu, answers, arguments, words",
    [
        (None, True, [], "no NVIDIA GPU"),
        ("RTX", True, ["--index-url", wheels.CUDA_INDEX], "there is RTX"),
        ("RTX", False, [], "RTX stays idle"),
    ],
)
def test_windows_has_its_cuda_builds_elsewhere(machine, monkeypatch, gpu, answers, arguments, words):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(wheels, "nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(wheels, "reachable", lambda url: answers)
    choice = wheels.choose(">=2.11")
    assert choice.arguments == ["torch>=2.11", *arguments] and words in choice.sentence


def test_an_address_that_does_not_answer_is_not_waited_for():
    start = time.monotonic()
    assert not wheels.reachable("http://127.0.0.1:9/", 2) and time.monotonic() - start < 5
