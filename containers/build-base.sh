#!/usr/bin/env bash
# Builds a base image without access to a registry: Debian with Python, as a tar file for `docker import` or
# `podman import`. Use it as BASE of the Dockerfiles instead of debian:12-slim.
#
#   containers/build-base.sh base.tar [PACKAGE…]
#   docker import -c 'CMD ["/bin/sh"]' base.tar belljar-base:latest
set -euo pipefail

out=${1:?where to write the tar}
shift
suite=${SUITE:-bookworm}
# The package mirror of this machine, or else the tool's default.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -m1 '/debian/\?$' || true)}
packages=(ca-certificates netbase python3 python3-venv "$@")
list=$(IFS=,; echo "${packages[*]}")

mkdir -p "$(dirname "$out")"
if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --format=tar --variant=minbase --include="$list" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --customize-hook='ln -sf python3 "$1/usr/bin/python"' \
        "$suite" "$out.new" ${mirror:+"$mirror"}
elif command -v debootstrap >/dev/null; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include="$list" "$suite" "$root" ${mirror:+"$mirror"}
    ln -sf python3 "$root/usr/bin/python"
    tar -C "$root" --exclude=./var/cache/apt --exclude=./dev -cf "$out.new" .
else
    echo "install mmdebstrap or debootstrap first" >&2
    exit 1
fi
mv "$out.new" "$out"
