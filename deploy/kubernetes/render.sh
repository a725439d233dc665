#!/usr/bin/env bash
# The plain manifests are the chart with its usual values: change the chart, then run this. A test compares them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
{
    echo "# Made from deploy/helm/belljar by deploy/kubernetes/render.sh, for the namespace default. First, there:"
    echo "#   kubectl create secret generic belljar-keys --from-literal=api-key=\"\$(openssl rand -hex 32)\""
    echo "# For another namespace, put its name for default into BELLJAR_SERVER_ALLOWED_HOSTS: requests that were sent to"
    echo "# other names are refused (403)."
    ${HELM:-helm} template belljar ../helm/belljar --namespace default \
        --set keys.existingSecret=belljar-keys --set autoscaling.enabled=true |
        sed -e '/^# Source:/d' -e '/managed-by: Helm/d'
} >"${1:-belljar.yaml}"
