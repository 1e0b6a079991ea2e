"""`python -m course_lib lab`: the environment, the learner's copies, JupyterLab on the first notebook."""

import argparse
import os
import socket

from . import copies, environment
from .environment import SetupError, say
from .requirements import ROOT

FIRST = "00_start_here.ipynb"


def main(argv):
    """Set up what is missing, refresh work/, become JupyterLab."""
    options = parse(argv)
    if not (ROOT / "notebooks" / FIRST).exists():
        raise SetupError(f"notebooks/{FIRST} is missing: get a complete clone of the course.")
    if options.port is not None and busy(options.port, options.ip):
        raise SetupError(
            f"Port {options.port} is busy, perhaps with a JupyterLab that is still open: choose "
            "another one, or leave --port away and a free one is found."
        )
    python = environment.ensure()
    for sentence in copies.refresh(ROOT / "notebooks", ROOT / "work"):
        say(sentence)
    if options.port is None and busy(8888, options.ip):
        say("Port 8888 is busy: JupyterLab takes the next free one.")
    say("Your notebooks are in work/. Stop JupyterLab with Ctrl-C in this window.")
    environment.hand_over(command(python, options, ROOT))


def command(python, options, root):
    """The command line of JupyterLab. Its token stays: whoever reaches the port could run code otherwise."""
    line = [str(python), "-m", "jupyterlab", f"--ServerApp.root_dir={root}"]
    line += [f"--LabApp.default_url=/lab/tree/work/{FIRST}", f"--ServerApp.ip={options.ip}"]
    if options.port is not None:
        line += [f"--ServerApp.port={options.port}", "--ServerApp.port_retries=0"]
    if options.no_browser:
        line.append("--no-browser")
    # JupyterLab asks for this word where it runs as root, as it does in containers
    if getattr(os, "geteuid", lambda: 1)() == 0:
        line.append("--allow-root")
    return line


def parse(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib lab",
        description="Set up what is missing and open JupyterLab on 00_start_here.",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    parser.add_argument("--port", type=int, help="this port and no other (default: a free one from 8888 on)")
    parser.add_argument("--ip", default="localhost", help="the address to listen on (default: this machine)")
    options = parser.parse_args(argv)
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error(f"--port {options.port}: a port is a number from 1 to 65535")
    return options


def busy(port, ip="localhost"):
    """Whether another program listens on the port already."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # as servers do on these systems: a port that was just given up counts as free
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise SetupError(f"--ip {ip} is not an address of this machine ({error.strerror}).") from None
    except PermissionError:
        raise SetupError(f"Port {port} needs special rights: choose one above 1023.") from None
    except OSError:
        return True
    return False
