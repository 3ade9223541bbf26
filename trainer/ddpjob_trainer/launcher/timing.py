"""Every constant of time of launcher and coordinator, in seconds of the monotonic clock.

Why apart: they only make sense side by side. Who notices a loss first, and how long the other side waits for it, is
the difference between these numbers (`BEAT_SECONDS` and `SILENCE_SECONDS` are the wire's: `ddpjob_api.messages`).
"""

TICK_SECONDS = 0.1
"""How often the coordinator looks at its clocks."""

AUTHENTICATION_SECONDS = 5.0
"""A peer that has not proved itself by then is dropped."""
CONNECT_SECONDS = 5.0
RECONNECT_FIRST_SECONDS = 0.1
RECONNECT_MAX_SECONDS = 2.0
"""Back-off of a launcher that looks for its coordinator."""
ALONE_SECONDS = 5.0
"""A launcher without a coordinator says so after this; at every start one of them is first."""
CALL_SECONDS = 2.0
"""How long a coordinator tries to reach a launcher that it calls."""
REFUSED_RETRY_SECONDS = 2.0
"""Between two tries of a launcher whose coordinator refused it."""

LOST_GRACE_SECONDS = 1.0
"""A closed connection may come back this long before its launcher is lost; and a verdict waits this long before it
takes a victim's error for the cause (the loss of a whole node is often seen later than its peers' errors)."""

PAUSE_SETTLE_SECONDS = 0.01
"""Between writing the pause word and reading the boundaries: longer than a worker's store-then-load."""
STOP_FRACTION = 0.5
"""Part of the grace period in which workers must have reached the stop step; else the rest is for SIGTERM and SIGKILL."""
KILL_FRACTION = 0.85
"""By then workers of a soft stop are killed."""
LEAVE_FRACTION = 0.95
"""By then a launcher that was told to go goes, before the kubelet kills it."""

LAST_WORDS_SECONDS = 1.0
"""A worker that has written its failure may take so long to end; then the generation is ended without waiting for it:
a thread or an exit handler holds it, and its peers wait for it in a collective."""

HANDLERS_SECONDS = 5.0
HANDLERS_FRACTION = 0.5
"""How long the exit handlers of a rank that has failed go on when all are ended: at most this part of the grace period."""
LAST_FRACTION = 0.1
"""At most this part of it, and HANDLERS_SECONDS, have those from SIGTERM to SIGKILL that were at the stop step in time."""
EARLY_SECONDS = 60.0
"""A rank that is inside one step for so long, when another has ended with 0, waits for it in a collective."""

STACKS_SECONDS = 0.1
"""At most between asking for stacks and SIGTERM, which the kernel would deliver first."""
STACKS_LOOK_SECONDS = 0.005
POST_MORTEM_SECONDS = 3.0
"""How much longer the ranks of a hung job have for it; one that sits in the kernel writes none."""
HELD_SECONDS = 0.5
"""So long a stopped rank stays so: it goes on to write its stacks, and the others, who wait for it, write theirs before."""
OOM_SECONDS = 30.0
"""A process that the kernel has killed for memory is gone after this: what ends later was killed by somebody else."""
COMMAND_OOM_SECONDS = 90.0
"""The same of a `command`, which ends later: torchrun and accelerate give the other ranks 30 s before they kill them, too."""
KILL_SECONDS = 30.0
"""A process that is not gone this long after SIGKILL sits in the kernel; its launcher gives up."""
ORPHAN_LOOKS = 50
ORPHAN_LOOK_SECONDS = 0.02
"""How often, and how far apart, adopted processes of an ended crew are looked for until none is left."""
DRAIN_SECONDS = 2.0
"""How long the output of an ended worker may stay open in the hands of its children."""
FLUSH_SECONDS = 5.0
"""How long the launcher waits at its end for whoever reads its output."""
FINISH_SECONDS = 5.0
"""How long the coordinator stays at its end for launchers that have not heard it."""

STANDBY_LOOK_SECONDS = 0.25
"""How often standbys are looked after."""
STANDBY_DELAY_SECONDS = 2.0
"""A rank has trained this long before a standby is started for it."""
STANDBY_END_SECONDS = 1.0
"""How long the launcher waits at its end for standbys it has killed."""
PACE_SECONDS = 0.02
PACE_SHARE = 0.5
"""How often a standby that imports is looked at, and the part of one core that it may have where cores are busy."""
PRESSURE_SECONDS = 0.2
"""How often it is looked whether somebody waits for a core."""
BUSY_SECONDS = 2.0
"""How long cores are taken for busy after somebody has waited."""
TAKE_OVER_SECONDS = 3.0
"""A standby that is ready and does not take its rank over within this is ended, and the rank started anew."""
IMPORTING_SECONDS = 10.0
"""The same for one that still imports: less than what a fresh process needs for the same imports."""

BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before the next generation, by the number of failures in a row without a step between them."""
HEALTHY_SECONDS = 60.0
"""A program whose steps nobody sees (a `command`) that lived this long is taken to have made some."""
REMIND_SECONDS = 30.0
"""Between two log lines about the same wait."""

RATE_WINDOW_SECONDS = 30.0
"""Samples per second and the estimated end are of this window."""

STRAGGLER_SECONDS = 5.0
"""A window in which the ranks are compared lasts at least this long."""
SUMS_RANKS_PER_SECOND = 64
"""Launchers send the sums of their ranks so seldom that the coordinator reads no more than these …"""
SUMS_SECONDS = 30.0
"""… and at least this often."""

HTTP_SECONDS = 5.0
"""A client of the launcher's HTTP port is served or dropped within this."""

RESTORE_SILENCE_SECONDS = 90.0
"""A launcher that fetches or compares a checkpoint and does not get further for this long is taken for unable; longer
than the patience of its sockets (`peers/taker.py`), so that it can try the next source before."""
RESTORE_AGAIN_SECONDS = 10.0
"""Between two attempts to bring every node a checkpoint that some node has and not every node can take."""
AGENT_SECONDS = 10.0
"""How long a torchrun or accelerate below a `command` may take until its Python has started."""
