"""The dashboard of one job: how far it is, what its time goes to, what it learns, how it recovers."""

from docs.generating.dashboards.parts import Section, board, choice, graph, laid_out, number, query, timeline
from grafana_foundation_sdk.builders.dashboard import Dashboard

from ddpjob_api.metrics import LOCAL_PHASES

UID = "ddpjob-job"
JOB = 'namespace="$namespace", ddpjob_dev_name="$job"'
RANK = f'{JOB}, rank=~"$rank"'
OWN = "|".join(LOCAL_PHASES)
WINDOW = "[$__rate_interval]"


def per_step(phases: str) -> str:
    """Seconds of a step that each rank spends in these phases."""
    seconds = f'ddpjob_trainer_phase_seconds_total{{{RANK}, phase=~"{phases}"}}'
    steps = f"ddpjob_trainer_optimizer_steps_total{{{RANK}}}"
    return f"sum by (rank) (rate({seconds}{WINDOW})) / sum by (rank) (rate({steps}{WINDOW}))"


def dashboard() -> Dashboard:
    built = (
        board("DDPJob / one job", UID, "How one training goes: progress, where its time goes, failures.")
        .with_variable(choice("namespace", "Namespace", "label_values(ddpjob_trainer_info, namespace)"))
        .with_variable(
            choice("job", "Job", 'label_values(ddpjob_trainer_info{namespace="$namespace"}, ddpjob_dev_name)')
        )
        .with_variable(
            choice("rank", "Rank", f"label_values(ddpjob_trainer_info{{{JOB}}}, rank)", several=True)
        )
    )
    return laid_out(built, now(), time_of_a_step(), learning(), recovery(), memory())


def now() -> Section:
    age = f"time() - max(ddpjob_trainer_last_step_timestamp_seconds{{{JOB}}})"
    saved = f"time() - max(ddpjob_trainer_checkpoint_timestamp_seconds{{{JOB}}})"
    again = f"max(ddpjob_trainer_restarts_total{{{JOB}}} + ddpjob_trainer_disruptions_total{{{JOB}}})"
    steps = f"max(rate(ddpjob_trainer_optimizer_steps_total{{{JOB}}}{WINDOW}))"
    samples = f"sum(rate(ddpjob_trainer_samples_total{{{JOB}}}{WINDOW}))"
    return Section.of(
        "Now",
        number("Step", "How far is it?", f"max(ddpjob_trainer_step{{{JOB}}})"),
        number("Ranks", "How many ranks are there?", f"count(ddpjob_trainer_info{{{JOB}}})"),
        number("Steps per second", "How fast is it?", steps, unit="ops"),
        number("Samples per second", "How fast is it, over all ranks?", samples),
        number("Loss", "How good is it?", f"avg(ddpjob_trainer_loss{{{JOB}}})"),
        number("Last step", "How long ago was a step made?", age, unit="s", bad_from=600),
        number("Checkpoint", "What would a failure cost now?", saved, unit="s"),
        number("Began again", "How often did it restart or lose pods?", again, bad_from=3),
    )


def time_of_a_step() -> Section:
    seconds = f"rate(ddpjob_trainer_phase_seconds_total{{{JOB}}}{WINDOW})"
    buckets = f"sum by (le) (rate(ddpjob_trainer_step_duration_seconds_bucket{{{JOB}}}{WINDOW}))"
    hidden = f"sum by (rank) (rate(ddpjob_trainer_comm_overlapped_seconds_total{{{RANK}}}{WINDOW}))"
    whole = f"sum by (rank) (rate(ddpjob_trainer_comm_seconds_total{{{RANK}}}{WINDOW}))"
    sent = f"sum by (rank) (rate(ddpjob_trainer_all_reduce_bytes_total{{{RANK}}}{WINDOW}))"
    waited = (
        f'sum by (rank) (rate(ddpjob_trainer_phase_seconds_total{{{JOB}, phase="comm_exposed"}}{WINDOW}))'
    )
    in_steps = f'rate(ddpjob_trainer_phase_seconds_total{{{JOB}, phase!~"checkpoint|evaluation"}}{WINDOW})'
    return Section.of(
        "Where the time goes",
        graph(
            "Phases",
            "What do the ranks spend their time on? data_wait: data comes late. comm_exposed: waiting for others.",
            query(f"sum by (phase) ({seconds}) / ignoring (phase) group_left () sum({seconds})", "{{phase}}"),
            unit="percentunit",
            stacked=True,
        ),
        graph(
            "Duration of a step",
            "Are steps even, or are some much longer?",
            *(
                query(f"histogram_quantile({q}, {buckets})", f"{q:.0%} of the steps")
                for q in (0.5, 0.9, 0.99)
            ),
            unit="s",
        ),
        graph(
            "DDP efficiency",
            "How fast is a rank, against a single process? The rest is waiting for others, on the median rank.",
            query(f"quantile(0.5, 1 - {waited} / sum by (rank) ({in_steps}))", "DDP efficiency"),
            unit="percentunit",
        ),
        graph(
            "Own work in a step",
            "Which rank is slow? Its line is above the others'.",
            query(per_step(OWN), "rank {{rank}}"),
            unit="s",
        ),
        graph(
            "Waiting for gradients in a step",
            "Who waits? All but the slow rank; all alike: the network.",
            query(per_step("comm_exposed"), "rank {{rank}}"),
            unit="s",
        ),
        graph(
            "Waiting for data in a step",
            "Does the DataLoader keep up?",
            query(per_step("data_wait"), "rank {{rank}}"),
            unit="s",
        ),
        timeline(
            "Straggler",
            "Which rank makes the others wait, and in which phase? Empty: none.",
            query(f"max by (rank, cause) (ddpjob_trainer_straggler{{{JOB}}})", "rank {{rank}}: {{cause}}"),
            span=8,
        ),
        graph(
            "Communication hidden behind backward",
            "How much of the all-reduce costs nothing? 100 % is the aim.",
            query(f"{hidden} / {whole}", "rank {{rank}}"),
            unit="percentunit",
        ),
        graph("Gradients", "How much goes over the network?", query(sent, "rank {{rank}}"), unit="Bps"),
    )


def learning() -> Section:
    skipped = f"sum(increase(ddpjob_trainer_non_finite_steps_total{{{JOB}}}{WINDOW}))"
    return Section.of(
        "Learning",
        graph(
            "Loss",
            "Does it go down, on every rank?",
            query(f"max by (rank) (ddpjob_trainer_loss{{{RANK}}})", "rank {{rank}}"),
            span=12,
            least=None,
        ),
        graph(
            "Gradient norm, learning rate",
            "Does it explode or vanish? Where is the schedule?",
            query(f"max(ddpjob_trainer_grad_norm{{{JOB}}})", "gradient norm"),
            query(f"max(ddpjob_trainer_learning_rate{{{JOB}}})", "learning rate"),
        ),
        graph(
            "Steps skipped",
            "Were there NaNs or infinities in gradients?",
            query(skipped, "not finite"),
            span=4,
        ),
    )


def recovery() -> Section:
    return Section.of(
        "Failures and checkpoints",
        timeline(
            "What ranks do",
            "Where is each rank: starting, training, saving, gone?",
            query(f"max by (rank, state) (ddpjob_trainer_state{{{RANK}}}) == 1", "rank {{rank}}: {{state}}"),
            span=12,
        ),
        graph(
            "Restarts and disruptions",
            "When did it begin again, by its own fault (restarts) or the cluster's (disruptions)? Did it hang?",
            query(f"max(ddpjob_trainer_restarts_total{{{JOB}}})", "restarts"),
            query(f"max(ddpjob_trainer_disruptions_total{{{JOB}}})", "disruptions"),
            query(f"max(ddpjob_trainer_hung{{{JOB}}})", "hang being dealt with"),
            span=12,
        ),
        graph(
            "Steps at stake",
            "How many steps would a failure cost?",
            query(
                f"max(ddpjob_trainer_step{{{JOB}}}) - max(ddpjob_trainer_checkpoint_step{{{JOB}}})",
                "since the newest checkpoint",
            ),
        ),
        graph(
            "Checkpoints",
            "Are they written? failing is 1 while the newest could not be.",
            query(f"sum(increase(ddpjob_trainer_checkpoints_total{{{JOB}}}{WINDOW}))", "written"),
            query(f"max(ddpjob_trainer_checkpoint_failing{{{JOB}}})", "failing"),
        ),
        graph(
            "Size of a checkpoint, fetched from other pods",
            "How much is written at once, and how much do pods get from each other?",
            query(f"max(ddpjob_trainer_checkpoint_bytes{{{JOB}}})", "newest checkpoint"),
            query(f"sum(ddpjob_trainer_checkpoint_fetched_bytes_total{{{JOB}}})", "fetched so far"),
            unit="bytes",
        ),
    )


def memory() -> Section:
    return Section.of(
        "Memory",
        graph(
            "Process",
            "Does it grow until the pod is out of memory?",
            query(f"max by (rank) (ddpjob_trainer_resident_memory_bytes{{{RANK}}})", "rank {{rank}}"),
            query(f"sum(ddpjob_trainer_standby_bytes{{{JOB}}})", "all standbys"),
            unit="bytes",
            span=12,
        ),
        graph(
            "Device",
            "How near is it to the device's limit? Nothing without a device.",
            query(
                f"max by (rank) (ddpjob_trainer_device_memory_allocated_bytes{{{RANK}}})",
                "rank {{rank}} in tensors",
            ),
            query(
                f"max by (rank) (ddpjob_trainer_device_memory_peak_bytes{{{RANK}}})",
                "rank {{rank}} in tensors at most",
            ),
            query(
                f"max by (rank) (ddpjob_trainer_device_memory_reserved_bytes{{{RANK}}})",
                "rank {{rank}} held by torch",
            ),
            unit="bytes",
            span=12,
        ),
    )
