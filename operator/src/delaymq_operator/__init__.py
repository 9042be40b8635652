"""The operator: it makes a cluster into what Broker, Topic and DelayLevelConfig resources say.

`api` holds the typed resources, `manifests` the objects made for a Broker, `reconcile` what is done about a difference.
These know neither kopf nor a Kubernetes client: `adapters` and `handlers` do, and `main` puts them together.
"""
