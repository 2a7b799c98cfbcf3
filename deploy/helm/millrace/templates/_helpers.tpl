{{- define "millrace.name" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 36 | trimSuffix "-" }}
{{- end }}

{{- define "millrace.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "millrace.labels" -}}
{{- $root := index . 0 -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{- define "millrace.account" -}}
{{ .Values.serviceAccount.name | default (include "millrace.name" .) }}
{{- end }}

{{- define "millrace.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The secrets of each process: tests/given_secrets.py has the same table, and a test compares both. */}}
{{- define "millrace.secrets" -}}
init: [MILLRACE_APP_KEY, MILLRACE_OPERATOR_KEY, MILLRACE_ENGINE_KEY, MILLRACE_SIGNING_KEY, MILLRACE_TRUSTED_KEYS]
engine: [MILLRACE_ENGINE_KEY, MILLRACE_TRUSTED_KEYS]
inference: [MILLRACE_ENGINE_KEY, MILLRACE_TRUSTED_KEYS]
feedback: []
dashboard: [MILLRACE_TRUSTED_KEYS]
episodes: []
rewards: []
training: [MILLRACE_SIGNING_KEY, MILLRACE_TRUSTED_KEYS]
release: [MILLRACE_OPERATOR_KEY, MILLRACE_SIGNING_KEY, MILLRACE_TRUSTED_KEYS, MILLRACE_WEBHOOK_SECRET]
{{- end }}

{{/* Ports of the processes that serve; every process has its operations on 9464. */}}
{{- define "millrace.ports" -}}
inference: 8400
engine: 8401
feedback: 8402
dashboard: 8403
{{- end }}

{{/* The environment of a process: root, process, file of settings. */}}
{{- define "millrace.env" -}}
{{- $root := index . 0 -}}
{{- $process := index . 1 -}}
{{- $values := $root.Values -}}
- {name: MILLRACE_SETTINGS, value: /etc/millrace/{{ index . 2 }}}
- {name: MILLRACE_BIND, value: 0.0.0.0}
- {name: MILLRACE_OPERATIONS, value: "0.0.0.0:9464"}
- {name: MILLRACE_LOG, value: {{ $values.log | quote }}}
{{- /* The only folders that can be written are volumes. */}}
- {name: HOME, value: /tmp}
- {name: NUMBA_CACHE_DIR, value: /var/lib/millrace/.numba}
- {name: PYTHONPYCACHEPREFIX, value: /var/lib/millrace/.python}
- {name: HF_HUB_OFFLINE, value: "1"}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- range index (include "millrace.secrets" $root | fromYaml) $process }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $values.secrets.existingSecret | quote }}
      key: {{ . }}
      {{- if has . (list "MILLRACE_APP_KEY" "MILLRACE_WEBHOOK_SECRET") }}
      optional: true
      {{- end }}
{{- end }}
{{- with $values.postgresql.existingSecret }}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $values.postgresql.passwordKey | quote }}}}
{{- end }}
{{- if and $values.redis.host $values.redis.existingSecret }}
- name: MILLRACE_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $values.redis.existingSecret | quote }}, key: {{ $values.redis.passwordKey | quote }}}}
{{- end }}
{{- with $values.kafka.sasl.existingSecret }}
- name: MILLRACE_KAFKA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $values.kafka.sasl.passwordKey | quote }}}}
{{- end }}
- {name: AWS_REGION, value: {{ $values.objectStore.region | quote }}}
{{- with $values.objectStore.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
{{- with $values.objectStore.existingSecret }}
{{- $secret := . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ . }}}}
{{- end }}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The security of a container. */}}
{{- define "millrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What all pods have: root, process, settings of the pod. */}}
{{- define "millrace.pod" -}}
{{- $root := index . 0 -}}
{{- $own := index . 2 -}}
serviceAccountName: {{ if eq (index . 1) "init" }}{{ include "millrace.initAccount" $root }}{{ else }}{{ include "millrace.account" $root }}{{ end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $root.Values.security.user }}
  runAsGroup: {{ $root.Values.security.user }}
  fsGroup: {{ $root.Values.security.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {{ toYaml $root.Values.security.seccompProfile | nindent 4 }}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $own $field }}
{{ $field }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The container of a process: root, process, settings of the pod, file of settings. */}}
{{- define "millrace.container" -}}
{{- $root := index . 0 -}}
{{- $process := index . 1 -}}
{{- $own := index . 2 -}}
{{- $port := get (include "millrace.ports" $root | fromYaml) $process -}}
{{- $needsTorch := has $process (list "engine" "training" "init") -}}
name: {{ $process }}
image: {{ include "millrace.image" (list $root (ternary $root.Values.images.torch $root.Values.images.slim $needsTorch)) }}
imagePullPolicy: {{ $root.Values.images.pullPolicy }}
{{- $ranks := max 1 (int (ternary $own.gpus 1 (eq $process "training"))) }}
{{- $nodes := int ($own.nodes | default 1) }}
{{- if gt $nodes 1 }}
command: # a rank that dies ends the group, and the agents on all nodes start it again
  - tini
  - --
  - python
  - -m
  - torch.distributed.run
  - --nnodes={{ $nodes }}
  - --nproc-per-node={{ $ranks }}
  - --rdzv-backend=c10d
  - --rdzv-endpoint={{ include "millrace.name" $root }}-training-0.{{ include "millrace.name" $root }}-training-pods:29400
  - --rdzv-id={{ include "millrace.name" $root }}
  - --max-restarts=100
  - -m
  - millrace
{{- end }}
args: [{{ $process }}, --home, /var/lib/millrace{{ if and (eq $nodes 1) (gt $ranks 1) }}, --processes, "{{ $ranks }}"{{ end }}]
env:
  {{- include "millrace.env" (list $root $process (index . 3)) | nindent 2 }}
securityContext:
  {{- include "millrace.containerSecurity" $root | nindent 2 }}
resources:
  {{- $resources := deepCopy $own.resources }}
  {{- if $own.gpus }}
  {{- $limits := merge (dict "nvidia.com/gpu" $own.gpus) ($resources.limits | default dict) }}
  {{- $resources = merge (dict "limits" $limits) $resources }}
  {{- end }}
  {{- toYaml $resources | nindent 2 }}
{{- if ne $process "init" }}
ports:
  {{- if $port }}
  - {name: http, containerPort: {{ $port }}}
  {{- end }}
  - {name: operations, containerPort: 9464}
startupProbe: # the first start compiles the codec's loops, and an engine loads its model
  httpGet: {path: /health, port: operations}
  periodSeconds: 5
  timeoutSeconds: 6
  failureThreshold: {{ div ($own.startSeconds | default 300) 5 }}
livenessProbe: # 503 after 120 s without a step; engine, training, release, rewards: 1,800 s
  httpGet: {path: /health, port: operations}
  periodSeconds: 10
  timeoutSeconds: 6
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /ready, port: operations}
  periodSeconds: 5
  timeoutSeconds: 6
  failureThreshold: 2
{{- if $own.preStopSeconds }}
lifecycle: # until load balancers have taken it out, it still accepts requests
  preStop: {sleep: {seconds: {{ $own.preStopSeconds }}}}
{{- end }}
{{- end }}
volumeMounts:
  - {name: home, mountPath: /var/lib/millrace}
  - {name: settings, mountPath: /etc/millrace, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if gt $ranks 1 }}
  - {name: shm, mountPath: /dev/shm}
  {{- end }}
  {{- if $root.Values.product.volume }}
  - {name: product, mountPath: {{ $root.Values.product.mountPath | quote }}, readOnly: true}
  {{- end }}
  {{- range $server, $secret := include "millrace.authorities" $root | fromYaml }}
  - {name: {{ $server }}-tls, mountPath: /etc/millrace-tls/{{ $server }}, readOnly: true}
  {{- end }}
{{- end }}

{{/* Volumes of a process but its home: root, name of the map of settings. */}}
{{- define "millrace.volumes" -}}
{{- $root := index . 0 -}}
- name: settings
  configMap: {name: {{ index . 1 }}}
- name: tmp
  emptyDir: {}
{{- with $root.Values.product.volume }}
- name: product
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $server, $secret := include "millrace.authorities" $root | fromYaml }}
- name: {{ $server }}-tls
  secret: {secretName: {{ $secret | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Server to the Secret with its certificates. */}}
{{- define "millrace.authorities" -}}
{{- range $server := list "kafka" "postgresql" "redis" }}
{{- $tls := (index $.Values $server).tls }}
{{- if and $tls.enabled $tls.existingSecret }}
{{ $server }}: {{ $tls.existingSecret | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "millrace.checksum" -}}
checksum/settings: {{ include "millrace.files" . | sha256sum }}
{{- end }}

{{/* Hooks run before everything else is made, so init has an account of its own where the chart makes accounts. */}}
{{- define "millrace.initAccount" -}}
{{ include "millrace.account" . }}{{ if .Values.serviceAccount.create }}-init{{ end }}
{{- end }}
