"""`python -m course_lib COMMAND`: finds the command by name and runs it.

Standard library only, and readable for old Pythons: this file runs before anything is installed, and it
is the one that tells a too old Python what it needs.
"""

import importlib
import sys

NEEDED = (3, 11)

# name: (where the function is, does it set up its own environment, what it does)
COMMANDS = {
    "lab": ("course_lib.bootstrap.lab:main", True, "set up what is missing and open JupyterLab"),
    "test": ("course_lib.bootstrap.suite:main", True, "set up what is missing and run everything"),
    "status": ("course_lib.exercises.progress:main", False, "show which exercises you have passed"),
    "solve": ("course_lib.exercises.solve:main", False, "write copies of the notebooks with all answers"),
    "doctor": ("course_lib.doctor.main:main", False, "examine a training loop: FILE.py:FUNCTION"),
    "predict": ("course_lib.experiments.predict_main:main", False, "predict the memory of a training step without running it"),
    "figures": ("course_lib.show.figures:main", False, "draw figures/*.svg again from figures/data/*.json"),
    "record": ("course_lib.experiments.record:main", False, "measure the recorded grid on this device"),
}


def usage():
    """The text of --help."""
    lines = ["usage: python -m course_lib COMMAND [options]", ""]
    lines += ["  %-9s %s" % (name, COMMANDS[name][2]) for name in COMMANDS]
    lines += ["", "`python -m course_lib COMMAND --help` shows the options of one command."]
    return "\n".join(lines)


def too_old(version):
    """The sentence for a Python of this version, or None where it is new enough."""
    if tuple(version[:2]) >= NEEDED:
        return None
    return (
        "The course needs Python %d.%d or newer, and this is Python %d.%d (%s): install a newer one and run "
        "the same command with it." % (NEEDED + tuple(version[:2]) + (sys.executable,))
    )


def main(argv=None):
    """Run one command. Returns the exit code: 0 well, 1 failed, 2 not understood."""
    argv = list(sys.argv[1:] if argv is None else argv)
    sentence = too_old(sys.version_info)
    if sentence:
        sys.stderr.write(sentence + "\n")
        return 2
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        sys.stderr.write("There is no command %r; the commands are: %s.\n" % (argv[0], known))
        return 2
    home, sets_up, _ = COMMANDS[argv[0]]
    environment = importlib.import_module("course_lib.bootstrap.environment")
    try:
        if not sets_up:
            environment.enter(argv)
        module, function = home.split(":")
        return getattr(_load(module, environment), function)(argv[1:])
    except environment.SetupError as error:
        sys.stderr.write("%s\n" % error)
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. Run the same command again to go on.\n")
        return 130


def _load(module, environment):
    """Import a command's module, with one sentence where the environment lacks something."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = getattr(error, "name", None) or str(error)
        if (module + ".").startswith(missing + "."):
            raise environment.SetupError(
                "This version of the course lacks this command (%s)." % module
            ) from None
        if missing.split(".")[0] == "course_lib":
            raise
        raise environment.SetupError(
            "%s is missing in this Python (%s): `python -m course_lib lab` sets it up."
            % (missing, sys.executable)
        ) from None


if __name__ == "__main__":
    sys.exit(main())
