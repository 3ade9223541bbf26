"""How far a pod's log was given, so that a connection that is made again goes on there and gives no line twice.

Why apart: the server is asked for what was stamped since a whole second, and stamps go back where a node's clock is set
back; what follows from that is tested without a server. What the server leaves out is not seen: if a clock is set back
after such a connection was asked for, the lines stamped before that second. Must not: ask anybody.
"""

import re

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
"""As the kubelet writes a time: always in one width, so that it is compared as text."""


class Given:
    """The lines given of one log."""

    def __init__(self) -> None:
        self.since = ""
        """The stamp of the line given last; empty before there is one."""
        self._alike = 0
        """So many lines in a row had it: a runtime stamps what it reads at once alike."""
        self._latest = ""
        """The latest stamp of all: later than `since` where the clock was set back."""
        self._skip = 0
        """So many lines with the stamp `since` come again, and others before them."""
        self._remark = ""
        """What the kubelet said last, while no line came."""

    def again(self) -> None:
        """The log is read once more, from `since` on."""
        self._skip = self._alike

    def new(self, text: str) -> str | None:
        """The line without its stamp; None if it was given."""
        stamp, _, line = text.partition(" ")
        if (
            STAMP.fullmatch(stamp) is None
        ):  # the kubelet's own word, that it cannot read the log: no line of it
            known, self._remark = text == self._remark, text
            return None if known else text
        if self._skip and stamp <= self._latest:
            self._skip -= stamp == self.since
            return None
        self._skip = 0  # also where the line given last does not come: its file was rotated away
        self._alike = self._alike + 1 if stamp == self.since else 1
        self._latest, self.since = max(self._latest, stamp), stamp
        self._remark = ""
        return line
