{{- define "delaymq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "delaymq.operatorName" -}}
{{ include "delaymq.fullname" . }}-operator
{{- end -}}

{{- define "delaymq.analyticsRole" -}}
{{ include "delaymq.fullname" . }}-analytics
{{- end -}}

{{/* A user with permissions only in the listed namespaces cannot create a ClusterRole. */}}
{{- define "delaymq.analyticsRoleKind" -}}
{{ ternary "Role" "ClusterRole" (not (empty .Values.watchNamespaces)) }}
{{- end -}}

{{- define "delaymq.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "delaymq.operatorName" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* The name is fixed: the network policies of brokers admit the operator by it. */}}
{{- define "delaymq.selectorLabels" -}}
app.kubernetes.io/name: delaymq-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "delaymq.labels" -}}
{{ include "delaymq.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* image: dict with repository, tag and digest; the tag defaults to appVersion. */}}
{{- define "delaymq.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{- define "delaymq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "delaymq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
