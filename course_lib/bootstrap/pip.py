"""pip, run for the learner: live progress, and one sentence instead of a page of errors."""

import os
import shlex
import subprocess
import sys

_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
    "Max retries exceeded",
    "Connection refused",
    "name resolution",
    "Read timed out",
)


def install(python, arguments, cwd):
    """Run `python -m pip install ARGUMENTS`. Returns (exit code, what pip wrote to its error stream)."""
    quiet = [] if sys.stdout.isatty() else ["-q"]
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--retries", "3", *quiet]
    command += arguments
    done = subprocess.run(command, cwd=cwd, stderr=subprocess.PIPE, text=True, errors="replace")
    return done.returncode, done.stderr


def explain(errors, names):
    """One sentence for a failed pip: what is missing, what to do.

    `errors` is pip's error stream, `names` the packages that were to be installed.
    """
    what = ", ".join(names)
    if "externally-managed-environment" in errors:
        return (
            f"pip may not change this Python, so {what} could not be installed: leave the environment "
            "(`deactivate`) and run the same command again; it then makes its own .venv."
        )
    if "No space left" in errors or "Disk quota" in errors:
        return f"The disk is full, so {what} could not be installed: free some space and run this again."
    if any(sign in errors for sign in _NETWORK):
        return (
            f"No package index could be reached, so these are still missing: {what}. Connect to the network "
            "(or point PIP_FIND_LINKS at a folder of wheels) and run the same command again."
        )
    if "No matching distribution found" in errors:
        wanted = errors.rpartition("No matching distribution found for ")[2].split("\n")[0].strip()
        return (
            f"pip finds no {wanted} for Python {sys.version.split()[0]} on this system: run the same command "
            "with another Python (3.11 is what the course is tested with)."
        )
    reasons = [line.strip() for line in errors.splitlines() if "error" in line.lower()] or ["no reason given"]
    return f"pip could not install {what}. It says: {reasons[-1]} Mend that and run the same command again."


def find_links(python):
    """The folders of wheels that pip is configured to look in, from the environment and its configuration."""
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    listing = subprocess.run([str(python), "-m", "pip", "config", "list"], capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        if key.endswith(".find-links"):
            links += " ".join(shlex.split(value)).split()
    return list(dict.fromkeys(links))
