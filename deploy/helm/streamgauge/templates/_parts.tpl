{{/* Pieces that the pods share. The objects equal those of deploy/kubernetes, which has the comments. */}}

{{- define "streamgauge.name" -}}
{{- if contains "streamgauge" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-streamgauge" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "streamgauge.labels" -}}
app.kubernetes.io/part-of: streamgauge
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "streamgauge.main" -}}
app.kubernetes.io/name: streamgauge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streamgauge.taps" -}}
app.kubernetes.io/name: streamgauge-tap
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streamgauge.secret" -}}
{{ .Values.existingSecret | default (include "streamgauge.name" .) }}
{{- end }}

{{- define "streamgauge.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "streamgauge.tapImage" -}}
image: {{ printf "%s:%s" .Values.image.tapRepository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "streamgauge.checksums" -}}
annotations:
  checksum/settings: {{ toJson .Values.settings | sha256sum }}
  checksum/secrets: {{ toJson .Values.secrets | sha256sum }}
{{- end }}

{{- define "streamgauge.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "streamgauge.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "streamgauge.locked" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
  - {name: secrets, mountPath: /run/secrets/streamgauge, readOnly: true}
{{- end }}

{{- define "streamgauge.settings" -}}
envFrom:
  - configMapRef: {name: {{ include "streamgauge.name" . }}}
env:
  - {name: STREAMGAUGE_SECRETS_DIR, value: /run/secrets/streamgauge}
{{- end }}

{{- define "streamgauge.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: secrets
  secret: {secretName: {{ include "streamgauge.secret" . }}, defaultMode: 0440}
{{- end }}

{{- define "streamgauge.claim" -}}
volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .Values.storage.className }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests: {storage: {{ .Values.storage.size }}}
{{- end }}

{{- define "streamgauge.analytics" -}}
- name: analytics
  {{- include "streamgauge.image" . | nindent 2 }}
  args: [analyze, --metrics, "0.0.0.0:4102"]
  {{- include "streamgauge.settings" . | nindent 2 }}
  ports:
    - {name: metrics, containerPort: 4102}
  startupProbe:
    httpGet: {path: /metrics, port: metrics}
    periodSeconds: 5
    timeoutSeconds: 10
    failureThreshold: 60
  {{- if eq .Values.mode "kafka" }}
  livenessProbe:
    httpGet: {path: /metrics, port: metrics}
    periodSeconds: 60
    timeoutSeconds: 30
    failureThreshold: 5
  {{- end }}
  resources: {{- toYaml .Values.analytics.resources | nindent 4 }}
  {{- include "streamgauge.locked" . | nindent 2 }}
{{- end }}

{{- define "streamgauge.dashboard" -}}
- name: dashboard
  {{- include "streamgauge.image" . | nindent 2 }}
  args: [dashboard, --dashboard-listen, "0.0.0.0:8501"]
  {{- include "streamgauge.settings" . | nindent 2 }}
  ports:
    - {name: dashboard, containerPort: 8501}
  readinessProbe:
    httpGet: {path: /_stcore/health, port: dashboard}
    periodSeconds: 5
  resources: {{- toYaml .Values.dashboard.resources | nindent 4 }}
  {{- include "streamgauge.locked" . | nindent 2 }}
{{- end }}
