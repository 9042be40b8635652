"""The operator: it reconciles Broker, Topic and DelayLevelConfig resources with the objects of the cluster.

`api` contains the typed resources, `manifests` the objects created for a Broker, `reconcile` the handling of
differences. None of them imports kopf or a Kubernetes client. `adapters` use the client, `handlers` use kopf,
`controller` decides when a resource is reconciled, and `main` connects the parts.
"""
