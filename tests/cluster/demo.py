"""`make demo-cluster`: Helm install, `kubectl apply -f examples/digits.yaml`, wait, show where to look further.

The cluster stays up, so that a reader can look around; `make cluster-down` ends it.
"""

import sys

from tests.cluster.harness import CannotRun
from tests.cluster.harness.cluster import Cluster, session
from tests.cluster.harness.provider import choose
from tests.cluster.installation import NAMESPACE, Installation
from tests.cluster.jobs import ROOT, Job, condition, example

TIMEOUT = 300


def main() -> int:
    """0 when the job is Complete."""
    try:
        provider = choose()
        provider.up(detach=True, user=session())
    except CannotRun as reason:
        print(f"no cluster: {reason}", file=sys.stderr)
        return 2
    cluster = Cluster(provider)
    installation = Installation(cluster)
    installation.upgrade()
    job = Job(cluster, "default", example("digits")["metadata"]["name"])
    job.delete()
    print("\n$ kubectl apply -f examples/digits.yaml")
    print(cluster.kubectl("apply", "-f", str(ROOT / "examples" / "digits.yaml")).strip())
    end = job.until(
        lambda found: any(condition(found, kind).get("status") == "True" for kind in ("Complete", "Failed")),
        "the job ends",
        TIMEOUT,
    )
    print("\n$ kubectl get ddpjob digits")
    print(cluster.kubectl("get", "ddpjob", job.name))
    result = end["status"].get("result", {})
    print(f"accuracy {result.get('accuracy')}, replicas equal: {result.get('replicasEqual')}")
    kubectl = provider.tool("kubectl")
    print(
        f"""
The cluster stays up. To look further:
  export KUBECONFIG={cluster.kubeconfig}
  {kubectl} get ddpjob digits -o yaml         # conditions, settings in effect, result
  {kubectl} get pods -l ddpjob.dev/name=digits -o wide
  {kubectl} logs digits-0                     # the ranks' output
  {kubectl} logs -n {NAMESPACE} deployment/ddpjob
End it with: make cluster-down"""
    )
    return 0 if condition(end, "Complete").get("status") == "True" else 1


if __name__ == "__main__":
    sys.exit(main())
