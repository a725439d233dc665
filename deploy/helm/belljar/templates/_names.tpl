{{- define "belljar.name" -}}
{{- printf "%s" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- /* Every DNS name of the service in the cluster, and the names that the operator adds. */}}
{{- define "belljar.hosts" -}}
{{- $name := include "belljar.name" . -}}
{{- $inside := printf "%s.%s" $name .Release.Namespace -}}
{{- concat (list $name $inside (print $inside ".svc") (print $inside ".svc.cluster.local")) .Values.allowedHosts | join "," -}}
{{- end -}}

{{- define "belljar.labels" -}}
app.kubernetes.io/name: belljar
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "belljar.selector" -}}
app.kubernetes.io/name: belljar
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "belljar.secret" -}}
{{- if .Values.keys.existingSecret -}}
{{- .Values.keys.existingSecret -}}
{{- else -}}
{{- required "set keys.existingSecret or keys.value: the server needs a key" .Values.keys.value | and nil -}}
{{- include "belljar.name" . }}-keys
{{- end -}}
{{- end -}}
