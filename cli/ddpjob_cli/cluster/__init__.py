"""A Kubernetes as its user sees it: with the kubeconfig, context and rights of `kubectl`."""
