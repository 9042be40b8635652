"""The operator: it makes a cluster into what Broker, Topic and DelayLevelConfig resources say.

`api` holds the typed resources, `manifests` the objects made for a Broker, `reconcile` what is done about a difference.
None of them knows kopf or a Kubernetes client. `adapters` use the client, `handlers` use kopf, `controller` decides
when a resource is reconciled, and `main` puts the parts together.
"""
