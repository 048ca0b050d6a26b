{{/* The name of a part: dict "root" $ "part" "picker". */}}
{{- define "larder.name" -}}
{{- printf "%s-%s" .root.Release.Name .part | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "larder.selector" -}}
app.kubernetes.io/name: larder
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "larder.labels" -}}
{{ include "larder.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "larder.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* The beginning of a pod's spec. */}}
{{- define "larder.pod" -}}
terminationGracePeriodSeconds: 60
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "larder.container" -}}
readinessProbe:
  httpGet: { path: /healthz, port: admin }
  periodSeconds: 2
# Clients learn that the pod ends before it stops to listen.
lifecycle:
  preStop: { sleep: { seconds: 5 } }
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: ["ALL"] }
{{- end }}

{{/* A pod is replaced when its config changes. */}}
{{- define "larder.annotations" -}}
checksum/config: {{ .config | sha256sum }}
prometheus.io/scrape: "true"
prometheus.io/port: "9900"
{{- end }}

{{/* A service account that may watch: dict "root" $ "part" "picker" "namespace" NAMESPACE "rules" LIST. */}}
{{- define "larder.watcher" -}}
{{- $name := include "larder.name" . }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels: {{- include "larder.labels" . | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "larder.labels" . | nindent 4 }}
rules:
{{- range .rules }}
  - apiGroups: [{{ .group | quote }}]
    resources: [{{ .resource | quote }}]
    verbs: ["get", "list", "watch"]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "larder.labels" . | nindent 4 }}
subjects:
  - { kind: ServiceAccount, name: {{ $name }}, namespace: {{ .root.Release.Namespace }} }
roleRef:
  kind: Role
  name: {{ $name }}
  apiGroup: rbac.authorization.k8s.io
{{- end }}

{{/* A network policy: dict "root" $ "part" "picker" "port" "grpc" "peers" BOOL. */}}
{{- define "larder.network" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "larder.name" . }}
  labels: {{- include "larder.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "larder.selector" . | nindent 6 }}
  policyTypes: ["Ingress"]
  ingress:
    - ports:
        - { port: {{ .port }} }
{{- if .peers }}
    - from:
        - podSelector:
            matchLabels: {{- include "larder.selector" . | nindent 14 }}
      ports:
        - { port: peers }
        - { port: peers-udp, protocol: UDP }
{{- end }}
    - from:
        - namespaceSelector:
            matchLabels: { kubernetes.io/metadata.name: {{ .root.Values.monitoringNamespace }} }
      ports:
        - { port: admin }
{{- end }}
