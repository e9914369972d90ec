{{- define "rmq.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rmq.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rmq.labels" -}}
{{ include "rmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The name servers' addresses, as brokers are told them. */}}
{{- define "rmq.namesrvAddr" -}}
{{- $name := printf "%s-namesrv" (include "rmq.fullname" .) -}}
{{- $addresses := list -}}
{{- range $number := until (int .Values.namesrv.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s.%s.svc.%s:9876" $name $number $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join ";" $addresses -}}
{{- end -}}

{{- define "rmq.env" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_INDEX
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
{{ include "rmq.server" . }}
{{- end -}}

{{/* What is the same for all servers, pods of a StatefulSet or not. */}}
{{- define "rmq.server" -}}
- name: RMQ_BIND_ADDRESS
  value: 0.0.0.0
{{- if .Values.secure.enabled }}
- name: RMQ_PROFILE
  value: secure
- name: RMQ_TLS_CERT_PATH
  value: /etc/rmq/server.pem
- name: RMQ_TLS_KEY_PATH
  value: /etc/rmq/server.key
- name: RMQ_TLS_TRUST_PATH
  value: /etc/rmq/ca.pem
- name: RMQ_CLUSTER_SECRET_FILE
  value: /etc/rmq/cluster.secret
- name: RMQ_ACL_FILE
  value: /etc/rmq/plain_acl.yml
{{- end }}
{{- end -}}

{{- define "rmq.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* What is the same for all pods; the dict has root, component and group. */}}
{{- define "rmq.pod" -}}
{{- $values := .root.Values -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
affinity:
  podAntiAffinity:
    {{- if eq $values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "rmq.selector" .root | nindent 12 }}
            rmq/group: {{ .group }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "rmq.selector" .root | nindent 14 }}
              rmq/group: {{ .group }}
    {{- end }}
volumes:
  - name: tmp
    emptyDir:
      medium: Memory
      sizeLimit: 64Mi
{{- if $values.secure.enabled }}
  - name: secure
    secret:
      secretName: {{ $values.secure.secretName }}
      defaultMode: 288
{{- end }}
{{- end -}}

{{- define "rmq.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- if .Values.secure.enabled }}
  - name: secure
    mountPath: /etc/rmq
    readOnly: true
{{- end }}
{{- end -}}

{{/* The loop runs: /healthz, from the start, also while a store is being opened. Clients are served: /ready. */}}
{{- define "rmq.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{- define "rmq.claim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}
