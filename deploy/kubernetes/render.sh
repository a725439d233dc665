#!/usr/bin/env bash
# Renders the plain manifests from the chart. Change the chart, then run this script; a test compares the two.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
{
    echo "# Rendered from deploy/helm/belljar by deploy/kubernetes/render.sh, for the namespace default. First create the key there:"
    echo "#   kubectl create secret generic belljar-keys --from-literal=api-key=\"\$(openssl rand -hex 32)\""
    echo "# For another namespace, replace \`default\` in BELLJAR_SERVER_ALLOWED_HOSTS with its name: requests that are sent to"
    echo "# other host names are refused (403)."
    ${HELM:-helm} template belljar ../helm/belljar --namespace default \
        --set keys.existingSecret=belljar-keys --set autoscaling.enabled=true |
        sed -e '/^# Source:/d' -e '/managed-by: Helm/d'
} >"${1:-belljar.yaml}"
