{{/* The settings that all processes share, as JSON. Passwords are not among them: see `millrace.env`. */}}
{{- define "millrace.shared" -}}
{{- $values := .Values -}}
{{- $name := include "millrace.name" . -}}
{{- $kafka := $values.kafka -}}
{{- $shared := dict
  "run" $values.product.run "policy" $values.product.name "base" $values.product.policy "tasks" $values.product.tasks
  "web_host" (printf "%s-inference" $name) "web_port" 8400
  "engine_host" (printf "%s-engine" $name) "engine_port" 8401
  "feedback_host" (printf "%s-feedback" $name) "feedback_port" 8402
  "dashboard_host" (printf "%s-dashboard" $name) "dashboard_port" 8403
  "kafka" $kafka.brokers "partitions" $kafka.partitions
  "kafka_replication" $kafka.replication "kafka_min_insync" $kafka.minInsync
  "weights_url" $values.objectStore.url
-}}
{{- if $kafka.tls.enabled }}
{{- $_ := set $shared "kafka_tls" true }}
{{- if $kafka.tls.existingSecret }}{{ $_ := set $shared "kafka_ca" "/etc/millrace-tls/kafka/ca.crt" }}{{ end }}
{{- if $kafka.tls.clientCertificate }}
{{- $_ := set $shared "kafka_certificate" "/etc/millrace-tls/kafka/tls.crt" }}
{{- $_ := set $shared "kafka_key" "/etc/millrace-tls/kafka/tls.key" }}
{{- end }}
{{- end }}
{{- with $kafka.sasl.mechanism }}
{{- $_ := set $shared "kafka_mechanism" . }}
{{- $_ := set $shared "kafka_user" $kafka.sasl.user }}
{{- end }}
{{- with $kafka.sasl.tokenUrl }}{{ $_ := set $shared "kafka_token_url" . }}{{ end }}
{{- with $kafka.sasl.tokenScope }}{{ $_ := set $shared "kafka_token_scope" . }}{{ end }}
{{- $sql := $values.postgresql }}
{{- $tls := "" }}
{{- if $sql.tls.enabled }}
{{- $tls = printf "?sslmode=verify-full&sslrootcert=%s" (ternary "/etc/millrace-tls/postgresql/ca.crt" "system" (not (empty $sql.tls.existingSecret))) }}
{{- end }}
{{- $_ := set $shared "database_url" (printf "postgresql+psycopg://%s@%s:%d/%s%s" $sql.user $sql.host (int $sql.port) $sql.database $tls) }}
{{- with $values.redis }}
{{- if .host }}
{{- $authority := ternary "?ssl_ca_certs=/etc/millrace-tls/redis/ca.crt" "" (and .tls.enabled (not (empty .tls.existingSecret))) }}
{{- $url := printf "%s://%s:%d/%d%s" (ternary "rediss" "redis" .tls.enabled) .host (int .port) (int .database) $authority }}
{{- $_ := set $shared "redis" $url }}
{{- end }}
{{- end }}
{{- $sections := dict "millrace" $shared }}
{{- with $values.product.sentinels }}{{ $_ := set $sections "release" (dict "sentinels" .) }}{{ end }}
{{- mustMergeOverwrite $sections (deepCopy $values.settings) | mustToRawJson }}
{{- end }}

{{/* A settings file: root, sections that only some processes have. */}}
{{- define "millrace.toml" -}}
{{- $sections := mustMergeOverwrite (include "millrace.shared" (index . 0) | fromJson) (index . 1) -}}
{{- range $section := keys $sections | sortAlpha }}
[{{ $section }}]
{{- range $field, $value := index $sections $section }}
{{- if not (kindIs "invalid" $value) }}
{{ $field }} = {{ include "millrace.tomlValue" $value }}
{{- end }}
{{- end }}
{{ end }}
{{- end }}

{{- define "millrace.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $name := keys . | sortAlpha }}{{ if $index }},{{ end }} {{ $name | quote }} = {{ include "millrace.tomlValue" (index $ $name) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $index, $item := . }}{{ if $index }}, {{ end }}{{ include "millrace.tomlValue" $item }}{{ end }}]
{{- else -}}
{{ mustToRawJson . }}
{{- end }}
{{- end }}

{{/* All settings files, for maps and for the checksum. */}}
{{- define "millrace.files" -}}
millrace.toml: |
  {{- include "millrace.toml" (list . dict) | nindent 2 }}
training.toml: |
  {{- include "millrace.toml" (list . (dict "millrace" (dict "device" .Values.training.device))) | nindent 2 }}
{{- range $pool := .Values.engine.pools }}
{{- $url := printf "http://${POD_NAME}.%s-engine.%s.svc:8401" (include "millrace.name" $) $.Release.Namespace }}
{{- $own := mustMergeOverwrite (dict "url" $url "slots" $pool.slots) (deepCopy $pool.settings) }}
{{- $shared := dict "device" $pool.device "region" $pool.region }}
engine-{{ $pool.name }}.toml: |
  {{- include "millrace.toml" (list $ (dict "millrace" $shared "engine" $own)) | nindent 2 }}
{{- end }}
{{- end }}
