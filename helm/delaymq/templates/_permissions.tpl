{{/* Permissions of the operator in watched namespaces. A test compares them with the operator's own table of its calls. */}}
{{- define "delaymq.watchedRules" -}}
- apiGroups: [delaymq.io]
  resources: [brokers]
  verbs: [get, list, watch]
- apiGroups: [delaymq.io]
  resources: [users]
  verbs: [list, watch]
- apiGroups: [delaymq.io]
  resources: [topics, delaylevelconfigs]
  verbs: [get, list, watch, patch]
- apiGroups: [delaymq.io]
  resources: [brokers/status, topics/status, delaylevelconfigs/status, users/status]
  verbs: [patch]
- apiGroups: [delaymq.io]
  resources: [brokers/finalizers, users/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, patch, delete]
# Secrets are never listed: the operator reads those that it created, and those that Brokers name.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.replication }}
# The registers and addresses of groups with replicas. The operator grants their brokers get, update and patch by name, and
# can grant only what it may do itself.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update, patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, create, update, patch, delete]
- apiGroups: [""]
  resources: [endpoints]
  verbs: [get, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
{{- end }}
{{- if .Values.rbac.analytics }}
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, list, create, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, create, patch, delete]
# The operator may bind only this role, to the service account of a Broker's Spark drivers.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ include "delaymq.analyticsRoleKind" . | lower }}s]
  resourceNames: [{{ include "delaymq.analyticsRole" . }}]
  verbs: [bind]
{{- end }}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [list, create, patch]
{{- end -}}

{{/* Permissions for objects without a namespace: whether the node of a lost volume still exists. */}}
{{- define "delaymq.volumeRules" -}}
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}

{{/* With watchNamespaces, granted in all namespaces: deleting a namespace removes its Role immediately, but the
finalizers of Topics and DelayLevelConfigs remain. Without these rules the operator could not remove them, and the
namespace would hang in Terminating. */}}
{{- define "delaymq.finalizerRules" -}}
- apiGroups: [delaymq.io]
  resources: [topics, delaylevelconfigs]
  verbs: [get, list, patch]
# To find out whether a Broker still requires work before the finalizer is removed.
- apiGroups: [delaymq.io]
  resources: [brokers]
  verbs: [get, list]
{{- end -}}

{{/* Whether these rules are needed: if the operator's own namespace is deleted, the operator is deleted, too. */}}
{{- define "delaymq.finalizersElsewhere" -}}
{{- if and .Values.rbac.finalizers .Values.watchNamespaces (without .Values.watchNamespaces .Release.Namespace) }}true{{ end -}}
{{- end -}}

{{/* Permissions of a Spark driver in the namespace of its Broker: for its executors, their configuration and scratch volumes,
and the ConfigMap in which it publishes its result. */}}
{{- define "delaymq.analyticsRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch, deletecollection]
- apiGroups: [""]
  resources: [services]
  verbs: [deletecollection]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, create, deletecollection]
{{- end -}}

{{/* Permissions in the operator's own namespace: the Lease of the active replica. */}}
{{- define "delaymq.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "delaymq.operatorName" . }}]
  verbs: [get, update]
# RBAC cannot restrict the creation of objects by name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end -}}
