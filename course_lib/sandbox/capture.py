"""Keep the first part of what a learner's code prints, and none of the rest."""

import sys
import threading

KEEP = 2000  # characters


class Printed:
    """What one thread prints to stdout and stderr while this is open: its start and how much it was."""

    def __init__(self):
        self.kept = ""
        self.total = 0
        self._streams = []

    def open(self):
        """Stand in front of sys.stdout and sys.stderr. Call `claim` in the thread to be listened to."""
        self._streams = [_Stream(sys.stdout, self), _Stream(sys.stderr, self)]
        sys.stdout, sys.stderr = self._streams

    def claim(self):
        """Listen to the calling thread."""
        for stream in self._streams:
            stream.owner = threading.get_ident()

    def close(self):
        """Step aside again, also if the learner's code put something else there."""
        sys.stdout, sys.stderr = (stream.under for stream in self._streams)

    def mute(self):
        """Stay, and swallow what the thread goes on printing: it could not be stopped."""
        sys.stdout, sys.stderr = self._streams

    def add(self, text):
        """Take what was printed."""
        self.total += len(text)
        if len(self.kept) < KEEP:
            self.kept += text[: KEEP - len(self.kept)]


class _Stream:
    """A stand-in for a stream: one thread writes into `printed`, all others go through."""

    def __init__(self, under, printed):
        self.under, self.printed, self.owner = under, printed, None

    def write(self, text):
        if threading.get_ident() != self.owner:
            return self.under.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.printed.add(text)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self.under, name)
