{{/* The name in front of every object. Cluster-scoped objects carry it too, so it always holds "tessera". */}}
{{- define "tessera.name" -}}
{{- $name := default .Release.Name .Values.nameOverride -}}
{{- if contains "tessera" $name -}}{{ $name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-tessera" $name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "tessera.pluginName" -}}{{ include "tessera.name" . }}-kubelet-plugin{{- end -}}

{{- define "tessera.labels" -}}
app.kubernetes.io/name: tessera
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tessera.pluginSelector" -}}
app.kubernetes.io/name: tessera
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: kubelet-plugin
{{- end -}}

{{/* One kubelet plugin DaemonSet. Context: root, name, nvml, nodeSelector. */}}
{{- define "tessera.daemonset" -}}
{{- $values := .root.Values -}}
{{- $plugin := $values.kubeletPlugin -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tessera.labels" .root | nindent 4 }}
    app.kubernetes.io/component: kubelet-plugin
spec:
  selector:
    matchLabels:
      {{- include "tessera.pluginSelector" .root | nindent 6 }}
      gpu.tessera.dev/daemonset: {{ .name }}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      # The new plugin registers before the old one stops, so that no pod waits for a plugin.
      maxSurge: 1
      maxUnavailable: 0
  template:
    metadata:
      labels:
        {{- include "tessera.pluginSelector" .root | nindent 8 }}
        gpu.tessera.dev/daemonset: {{ .name }}
      annotations:
        kubectl.kubernetes.io/default-container: plugin
        {{- with $plugin.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "tessera.pluginName" .root }}
      priorityClassName: {{ $plugin.priorityClassName | quote }}
      # The plugin asks for the API server only, by address.
      dnsPolicy: Default
      enableServiceLinks: false
      # A call of the kubelet in flight is answered first; it takes up to 40 s.
      terminationGracePeriodSeconds: 60
      {{- with $values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $plugin.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $plugin.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: plugin
          image: {{ printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion) | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            - --nvml={{ .nvml }}
            {{- if eq .nvml "real" }}
            - --driver-root={{ $plugin.driverRoot }}
            - --driver-root-in-container=/host
            {{- end }}
            - --kubelet-plugins-dir={{ $plugin.kubeletDir }}/plugins
            - --kubelet-registry-dir={{ $plugin.kubeletDir }}/plugins_registry
            - --cdi-dir={{ $plugin.cdiDir }}
            - --kube-api-qps={{ $plugin.kubeAPIQPS }}
            - --kube-api-burst={{ $plugin.kubeAPIBurst }}
            - --discovery-interval={{ $plugin.discoveryInterval }}
            - --reconcile-interval={{ $plugin.reconcileInterval }}
            - --metrics-bind-address=:{{ $plugin.metricsPort }}
            - --health-bind-address=:{{ $plugin.healthPort }}
            - --logging-format={{ $values.logging.format }}
            - --v={{ $values.logging.verbosity }}
          env:
            - name: NODE_NAME
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
            - name: POD_UID
              valueFrom: {fieldRef: {fieldPath: metadata.uid}}
          ports:
            - {name: metrics, containerPort: {{ $plugin.metricsPort }}}
            - {name: health, containerPort: {{ $plugin.healthPort }}}
          startupProbe:
            grpc: {port: {{ $plugin.healthPort }}, service: liveness}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            grpc: {port: {{ $plugin.healthPort }}, service: liveness}
            periodSeconds: 15
            timeoutSeconds: 5
            failureThreshold: 4
          # Ready means registered with the kubelet and published; a rolling update waits for it.
          readinessProbe:
            grpc: {port: {{ $plugin.healthPort }}}
            periodSeconds: 2
          securityContext:
            # Device nodes, and files of the kubelet and of the container runtime.
            privileged: true
          {{- with $plugin.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - {name: plugins, mountPath: {{ $plugin.kubeletDir }}/plugins}
            - {name: registry, mountPath: {{ $plugin.kubeletDir }}/plugins_registry}
            - {name: cdi, mountPath: {{ $plugin.cdiDir }}}
            {{- if eq .nvml "real" }}
            - {name: driver-root, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
            {{- end }}
      volumes:
        - name: plugins
          hostPath: {path: {{ $plugin.kubeletDir }}/plugins, type: DirectoryOrCreate}
        - name: registry
          hostPath: {path: {{ $plugin.kubeletDir }}/plugins_registry, type: DirectoryOrCreate}
        - name: cdi
          hostPath: {path: {{ $plugin.cdiDir }}, type: DirectoryOrCreate}
        {{- if eq .nvml "real" }}
        - name: driver-root
          hostPath: {path: {{ $plugin.driverRoot }}, type: Directory}
        {{- end }}
{{- end -}}
