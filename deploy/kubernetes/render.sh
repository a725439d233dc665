#!/usr/bin/env bash
# The plain manifests are the chart with its usual values: change the chart, then run this. A test compares them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
{
    echo "# Made from deploy/helm/belljar by deploy/kubernetes/render.sh. First, in the same namespace:"
    echo "#   kubectl create secret generic belljar-keys --from-literal=api-key=\"\$(openssl rand -hex 32)\""
    ${HELM:-helm} template belljar ../helm/belljar --namespace default \
        --set keys.existingSecret=belljar-keys --set autoscaling.enabled=true |
        sed -e '/^# Source:/d' -e '/managed-by: Helm/d'
} >"${1:-belljar.yaml}"
