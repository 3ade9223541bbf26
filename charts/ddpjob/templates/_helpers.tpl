{{- define "ddpjob.name" -}}
{{- if contains "ddpjob" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-ddpjob" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ddpjob.selector" -}}
app.kubernetes.io/name: ddpjob
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ddpjob.labels" -}}
{{ include "ddpjob.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Of a pod beside the operator's, which no selector of theirs may find: (list $ NAME). */ -}}
{{- define "ddpjob.besideLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: ddpjob-{{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "ddpjob.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "ddpjob.name" .) }}
{{- end }}

{{- define "ddpjob.image" -}}
{{- .Values.image.reference | default (printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end }}

{{- define "ddpjob.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ddpjob.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Whether what needs the Prometheus operator is made: (list $ Auto|Always|Never KIND). Empty means no. */ -}}
{{- define "ddpjob.installs" -}}
{{- $root := index . 0 }}
{{- $install := index . 1 }}
{{- $api := printf "monitoring.coreos.com/v1/%s" (index . 2) }}
{{- if or (eq $install "Always") (and (eq $install "Auto") ($root.Capabilities.APIVersions.Has $api)) }}yes{{ end }}
{{- end }}

{{- /* What the operator calls in the namespaces it serves; docs/operations.md says what for. */ -}}
{{- define "ddpjob.rules" -}}
- apiGroups: [ddpjob.dev]
  resources: [ddpjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [ddpjob.dev]
  resources: [ddpjobs/status]
  verbs: [patch]
- apiGroups: [ddpjob.dev]
  resources: [ddpjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}
