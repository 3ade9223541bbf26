"""The dashboard of all jobs: what runs, what is wrong, what time goes to, how the operator does."""

from docs.generating.dashboards import job
from docs.generating.dashboards.parts import Section, board, column, graph, laid_out, number, query, rows
from grafana_foundation_sdk.builders.dashboard import Dashboard

UID = "ddpjob-fleet"
WINDOW = "[$__rate_interval]"
RELEASE = "cluster, namespace, job, app_kubernetes_io_instance"
"""Labels that the pods of one operator have in common, and no other operator's has (charts/ddpjob/files/alerts.yaml)."""
BY_JOB = "by (namespace, ddpjob_dev_name)"
LINK = (
    f"/d/{job.UID}?var-datasource=${{datasource}}&var-namespace=${{__data.fields.Namespace}}"
    "&var-job=${__data.fields.Job}&${__url_time_range}"
)


def dashboard() -> Dashboard:
    built = board(
        "DDPJob / all jobs", UID, "What all trainings do, what is wrong with which, and the operator."
    )
    return laid_out(built, jobs(), attention(), lost_time(), operator())


def condition(name: str) -> str:
    found = f'ddpjob_operator_jobs_by_condition{{condition="{name}"}}'
    return f"sum(max by ({RELEASE}, reason) ({found})) or vector(0)"


def now(gauge: str, label: str = "") -> str:
    """Jobs by this label; while one operator's pod takes over from another, both tell of the same ones."""
    if not label:
        return f"sum(max by ({RELEASE}) ({gauge}))"
    return f"sum by ({label}) (max by ({RELEASE}, {label}) ({gauge}))"


def jobs() -> Section:
    useful = 'sum(increase(ddpjob_operator_job_seconds_total{use="useful"}[$__range]))'
    all_time = "sum(increase(ddpjob_operator_job_seconds_total[$__range]))"
    ranks = "count(ddpjob_trainer_info)"
    share = (
        f'sum {BY_JOB} (rate(ddpjob_trainer_phase_seconds_total{{phase=~"data_wait|comm_exposed"}}{WINDOW}))'
        f" / sum {BY_JOB} (rate(ddpjob_trainer_phase_seconds_total{WINDOW}))"
    )
    saved = f"time() - max {BY_JOB} (ddpjob_trainer_checkpoint_timestamp_seconds)"
    return Section.of(
        "Jobs",
        number("Running", "How many jobs train?", condition("Running"), span=4),
        number("Ranks", "How many ranks are there?", ranks, span=4),
        number("Restarting", "How many are coming back?", condition("Restarting"), span=4),
        number("Hung", "How many hang?", condition("Hung"), span=4, bad_from=1),
        number("Failed", "How many failed, and are still there?", condition("Failed"), span=4, bad_from=1),
        number(
            "Goodput",
            "Which part of all jobs' time in this range made new steps?",
            f"{useful} / {all_time}",
            unit="percentunit",
            span=4,
        ),
        rows(
            "Jobs that run",
            "Which job is where, which waits much, whose checkpoint is old? A click on a job opens its dashboard.",
            [
                (column("A", f"count {BY_JOB} (ddpjob_trainer_info)"), "Ranks", "short"),
                (column("B", f"max {BY_JOB} (ddpjob_trainer_step)"), "Step", "short"),
                (
                    column("C", f"max {BY_JOB} (rate(ddpjob_trainer_optimizer_steps_total{WINDOW}))"),
                    "Steps per second",
                    "short",
                ),
                (column("D", share), "Waiting", "percentunit"),
                (column("E", saved), "Age of the checkpoint", "s"),
                (column("F", f"max {BY_JOB} (ddpjob_trainer_restarts_total)"), "Restarts", "short"),
                (column("G", f"max {BY_JOB} (ddpjob_trainer_disruptions_total)"), "Disruptions", "short"),
            ],
            by=[("namespace", "Namespace"), ("ddpjob_dev_name", "Job")],
            link=LINK,
        ),
    )


def attention() -> Section:
    return Section.of(
        "What is wrong",
        graph(
            "Slow ranks",
            "How many jobs does one rank slow down, and by what?",
            query(now("ddpjob_operator_slow_jobs", "cause"), "{{cause}}"),
            span=6,
            stacked=True,
        ),
        graph(
            "Advice",
            "How many jobs mostly wait, cannot save, or have not saved for long?",
            query(now("ddpjob_operator_inefficient_jobs"), "mostly waiting"),
            query(now("ddpjob_operator_checkpoint_failing_jobs"), "cannot save"),
            query(now("ddpjob_operator_stale_checkpoint_jobs"), "not saved for long"),
            span=6,
        ),
        graph(
            "Incidents",
            "What makes jobs begin again, or ends them? (in an hour)",
            query("sum by (reason) (increase(ddpjob_operator_incidents_total[1h]))", "{{reason}}"),
            span=6,
            stacked=True,
        ),
        graph(
            "Failed jobs",
            "What do jobs fail with?",
            query(now('ddpjob_operator_jobs_by_condition{condition="Failed"}', "reason"), "{{reason}}"),
            span=6,
            stacked=True,
        ),
    )


def lost_time() -> Section:
    used = f"rate(ddpjob_operator_job_seconds_total{WINDOW})"
    buckets = "sum by (le, stage) (increase(ddpjob_operator_creation_seconds_bucket[$__range]))"
    return Section.of(
        "Time",
        graph(
            "What time goes to",
            "What is lost to queueing, starting, restarting, hangs, and steps made again?",
            query(f"sum by (use) ({used})", "{{use}}"),
            stacked=True,
        ),
        graph(
            "Until a job trains",
            "How long until pods are made, run, and the first step is done? (nine of ten jobs in this range)",
            query(f"histogram_quantile(0.9, {buckets})", "{{stage}}"),
            unit="s",
        ),
        graph(
            "Jobs by state",
            "What do jobs do?",
            query(now("ddpjob_operator_jobs", "state"), "{{state}}"),
            stacked=True,
        ),
    )


def operator() -> Section:
    looks = f"sum by (le) (rate(ddpjob_operator_reconcile_duration_seconds_bucket{WINDOW}))"
    requests = f"sum by (le, verb) (rate(ddpjob_operator_api_request_duration_seconds_bucket{WINDOW}))"
    return Section.of(
        "Operator",
        graph(
            "Leader",
            "Does exactly one operator serve?",
            query("sum(ddpjob_operator_leader)", "serving"),
            query("count(ddpjob_operator_build_info)", "all"),
            span=6,
        ),
        graph(
            "Queue",
            "Does it keep up?",
            query(now("ddpjob_operator_queue_depth"), "jobs waiting"),
            query("max(ddpjob_operator_queue_oldest_seconds)", "oldest, seconds"),
            span=6,
        ),
        graph(
            "Looks at jobs",
            "How many, and do they fail?",
            query(f"sum by (result) (rate(ddpjob_operator_reconciles_total{WINDOW}))", "{{result}}"),
            unit="ops",
            span=6,
        ),
        graph(
            "Time of a look",
            "What does one cost?",
            *(query(f"histogram_quantile({q}, {looks})", f"{q:.0%} of them") for q in (0.5, 0.99)),
            unit="s",
            span=6,
        ),
        graph(
            "Requests to the API server",
            "Which, and are they refused (4xx) or too many (429)?",
            query(
                f"sum by (verb, resource, code) (rate(ddpjob_operator_api_requests_total{WINDOW}))",
                "{{verb}} {{resource}} {{code}}",
            ),
            unit="reqps",
            span=12,
        ),
        graph(
            "Time of a request",
            "Is the API server slow? (99 % of them)",
            query(f"histogram_quantile(0.99, {requests})", "{{verb}}"),
            unit="s",
            span=6,
        ),
        graph(
            "Questions to coordinators",
            "Does it reach the jobs' pods?",
            query(f"sum by (result) (rate(ddpjob_operator_polls_total{WINDOW}))", "{{result}}"),
            unit="ops",
            span=6,
        ),
    )
